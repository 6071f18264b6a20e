// The ranks of this process that wait until the schedules of their calls are decided.
//
//   ranks.Add(rank, [&] { threads.WatchDeadlines(); });
//   std::vector<ArrivingRank> ready = ranks.Take(call, [&](ArrivingRank& rank) { return IsDecided(rank); });
//   ranks.EndStarting();   // for each rank of `ready`, after it has joined its call
//
// Thread-safe. The functions passed as arguments run with the mutex held and must not call this object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/executor/messages/arriving_rank.h"

namespace jaxcomm {

class WaitingRanks {
 public:
  // Calls `before`, which starts the deadline watch, and then adds the rank. Holds the mutex throughout, so the watch
  // cannot end without seeing the rank. If memory runs out, throws and leaves the rank unchanged.
  template <typename Before>
  void Add(ArrivingRank& rank, const Before& before) {
    std::lock_guard<std::mutex> lock(mutex_);
    before();
    waiting_[{rank.id.communicator, rank.id.site}].push_back(std::move(rank));
  }

  // Takes the ranks that wait at the call's site and may start.
  template <typename MayStart>
  std::vector<ArrivingRank> Take(const CallId& call, const MayStart& may_start) {
    std::vector<ArrivingRank> ready;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = waiting_.find({call.communicator, call.site});
    if (at == waiting_.end()) return ready;
    TakeReady(at->second, may_start, ready);
    if (at->second.empty()) waiting_.erase(at);
    return ready;
  }

  // Takes the ranks that may start, at all sites.
  template <typename MayStart>
  std::vector<ArrivingRank> TakeAll(const MayStart& may_start) {
    std::vector<ArrivingRank> ready;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      TakeReady(at->second, may_start, ready);
      at = at->second.empty() ? waiting_.erase(at) : std::next(at);
    }
    return ready;
  }

  void EndStarting() {
    std::lock_guard<std::mutex> lock(mutex_);
    --starting_;
  }

  // Whether no rank waits, and all ranks that were taken have joined their calls.
  bool empty() const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto has_ranks = [](const auto& each) { return !each.second.empty(); };
    return starting_ == 0 && std::none_of(waiting_.begin(), waiting_.end(), has_ranks);
  }

 private:
  // Moves to `ready` the ranks that may start.
  template <typename MayStart>
  void TakeReady(std::vector<ArrivingRank>& ranks, const MayStart& may_start, std::vector<ArrivingRank>& ready) {
    const size_t before = ready.size();
    for (size_t i = 0; i < ranks.size();) {
      if (!may_start(ranks[i])) {
        ++i;
        continue;
      }
      ready.push_back(std::move(ranks[i]));
      ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i));
    }
    starting_ += ready.size() - before;
  }

  mutable std::mutex mutex_;
  std::map<std::pair<uint64_t, uint32_t>, std::vector<ArrivingRank>> waiting_;  // by communicator and site
  size_t starting_ = 0;  // ranks that were taken and have not joined their calls yet
};

}  // namespace jaxcomm
