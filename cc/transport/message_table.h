// Values by message, in the order of the messages' ids, so that those of one call lie together.
//
//   MessageTable<Posted> posted;
//   bool is_new = posted.Add(id, value);
//   std::optional<Posted> taken = posted.Take(id);
//   posted.TakeCall(call, [](const MessageId& id, Posted value) { ... });
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "cc/transport/transport.h"

namespace jaxcomm {

template <typename Value>
class MessageTable {
 public:
  // Returns false, and changes nothing, if the id has a value.
  bool Add(const MessageId& id, Value value) { return values_.try_emplace(id, std::move(value)).second; }

  // Replaces the value of the id, if it has one.
  void Set(const MessageId& id, Value value) { values_.insert_or_assign(id, std::move(value)); }

  Value* Find(const MessageId& id) {
    const auto at = values_.find(id);
    return at == values_.end() ? nullptr : &at->second;
  }

  std::optional<Value> Take(const MessageId& id) {
    const auto at = values_.find(id);
    if (at == values_.end()) return std::nullopt;
    std::optional<Value> taken(std::move(at->second));
    values_.erase(at);
    return taken;
  }

  // Calls use(id, value) with each value of the call.
  template <typename Use>
  void TakeCall(const CallId& call, Use use) {
    MessageId first;
    first.call = call;
    for (auto at = values_.lower_bound(first); at != values_.end() && at->first.call == call;) {
      use(at->first, std::move(at->second));
      at = values_.erase(at);
    }
  }

  // Calls use(id, value) with each value for which `chosen(value)` is true.
  template <typename Chosen, typename Use>
  void TakeIf(Chosen chosen, Use use) {
    for (auto at = values_.begin(); at != values_.end();) {
      if (chosen(std::as_const(at->second))) {
        use(at->first, std::move(at->second));
        at = values_.erase(at);
      } else {
        ++at;
      }
    }
  }

  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  size_t size() const { return values_.size(); }

 private:
  std::map<MessageId, Value> values_;
};

}  // namespace jaxcomm
