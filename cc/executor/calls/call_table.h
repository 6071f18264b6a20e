// The calls that have begun and that further ranks may join, by key.
//
//   CallTable<CallId, MessageCall> calls;
//   const auto [call, is_new] = calls.Join(id, [&](int64_t number) { return std::make_shared<MessageCall>(…); });
//   calls.Erase(id);        // the call is over
//   calls.KeepFailed(id);   // the call has failed: ranks that arrive late get its error
//
// Keeps the newest kFailedKept failed calls. Ranks that arrive at older failed calls wait until the deadline. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"

namespace jaxcomm {

template <typename Key, typename Call>
class CallTable {
 public:
  static constexpr size_t kFailedKept = 256;

  struct Joined {
    std::shared_ptr<Call> call;
    bool is_new;
  };
  // Returns the call of this key. If the table has no call of this key, adds the call that make(number) returns. Calls
  // are numbered from 1 in the order in which they begin.
  template <typename Make>
  Joined Join(const Key& key, const Make& make) {
    if (std::shared_ptr<Call> call = Find(key)) return {std::move(call), false};
    std::shared_ptr<Call> call = make(number_ + 1);
    calls_.emplace(key, call);
    ++number_;
    return {std::move(call), true};
  }

  // Returns the next call number, for a call that never enters the table because the call has ended as soon as it
  // began.
  int64_t Count() { return ++number_; }

  // Returns null if the call has not begun or is over.
  std::shared_ptr<Call> Find(const Key& key) const {
    const auto at = calls_.find(key);
    return at == calls_.end() ? nullptr : at->second;
  }

  // Returns whether the table had the call.
  bool Erase(const Key& key) { return calls_.erase(key) > 0; }

  template <typename Condition>
  void EraseIf(const Condition& condition) {
    for (auto at = calls_.begin(); at != calls_.end();) {
      at = condition(at->first, *at->second) ? calls_.erase(at) : std::next(at);
    }
  }

  void KeepFailed(const Key& key) {
    const std::optional<Key> oldest = failed_.Add(key, true).dropped;
    if (!oldest) return;
    const std::shared_ptr<Call> call = Find(*oldest);
    if (call && call->failed()) calls_.erase(*oldest);
  }

  void Clear() {
    calls_.clear();
    failed_.Clear();
  }

  std::vector<std::pair<Key, std::shared_ptr<Call>>> All() const { return {calls_.begin(), calls_.end()}; }
  size_t size() const { return calls_.size(); }

 private:
  std::map<Key, std::shared_ptr<Call>> calls_;
  BoundedMap<Key, bool> failed_{kFailedKept};  // keys of failed calls; calls_ may no longer have some of these calls
  int64_t number_ = 0;
};

}  // namespace jaxcomm
