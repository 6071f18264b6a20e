// A table of values by message id. The table is in the order of ids, so the values of one call are adjacent.
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
  // Returns false, and changes nothing, if the id already has a value.
  bool Add(const MessageId& id, Value value) { return values_.try_emplace(id, std::move(value)).second; }

  // Stores the value, and replaces an earlier value of the id.
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

  // Removes the values of the call, and calls use(id, value) with each of them.
  template <typename Use>
  void TakeCall(const CallId& call, Use use) {
    MessageId first;
    first.call = call;
    for (auto at = values_.lower_bound(first); at != values_.end() && at->first.call == call;) {
      use(at->first, std::move(at->second));
      at = values_.erase(at);
    }
  }

  // Removes the values for which `chosen(value)` is true, and calls use(id, value) with each of them.
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
