// A map that keeps its newest entries. If it would exceed its capacity, it drops its oldest entry.
//
//   BoundedMap<CallId, Status> failed(/*capacity=*/1024);
//   failed.Add(id, why);                       // if the map has a value for `id`, it keeps that value
//   if (const Status* why = failed.Find(id)) ...
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace jaxcomm {

template <typename Key, typename Value, typename Map = std::map<Key, Value>>
class BoundedMap {
 public:
  using const_iterator = typename Map::const_iterator;

  explicit BoundedMap(size_t capacity) : capacity_(capacity) {}

  struct Added {
    Value* value;  // the key's value; the next Add may destroy it
    bool is_new;
    std::optional<Key> dropped = std::nullopt;  // the key of the dropped entry, if any
  };
  Added Add(const Key& key, Value value = Value()) {
    if (Value* const kept = Find(key)) return {kept, /*is_new=*/false};
    Added added{&map_.emplace(key, std::move(value)).first->second, /*is_new=*/true};
    order_.push_back(key);
    if (order_.size() <= capacity_) return added;
    added.dropped = std::move(order_.front());
    order_.pop_front();
    map_.erase(*added.dropped);
    return added;
  }

  Value* Find(const Key& key) {
    const auto at = map_.find(key);
    return at == map_.end() ? nullptr : &at->second;
  }
  const Value* Find(const Key& key) const {
    const auto at = map_.find(key);
    return at == map_.end() ? nullptr : &at->second;
  }

  const_iterator begin() const { return map_.begin(); }
  const_iterator end() const { return map_.end(); }
  const_iterator lower_bound(const Key& key) const { return map_.lower_bound(key); }
  size_t size() const { return map_.size(); }

  void Clear() {
    map_.clear();
    order_.clear();
  }

 private:
  size_t capacity_;
  Map map_;
  std::deque<Key> order_;  // oldest first
};

}  // namespace jaxcomm
