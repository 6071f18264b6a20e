// Tracks which processes are reading the memory of a process, and for which calls.
//
//   if (readers.Begin(call, reader)) { ...; readers.End(call, reader); }   // on the reader's thread
//   readers.Cancel(call);     // afterwards, no read for the call begins or is in progress
//   readers.Fence(reader);    // afterwards, no read by the reader begins or is in progress
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "cc/transport/cancelled_calls.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Readers {
 public:
  bool Begin(const CallId& call, uint32_t reader) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_.Contains(call) || fenced_.count(reader) > 0) return false;
    reading_.push_back({call, reader});
    return true;
  }
  void End(const CallId& call, uint32_t reader) {
    std::lock_guard<std::mutex> lock(mutex_);
    reading_.erase(std::find(reading_.begin(), reading_.end(), std::make_pair(call, reader)));
    ended_.notify_all();
  }

  void Cancel(const CallId& call) {
    std::unique_lock<std::mutex> lock(mutex_);
    cancelled_.Add(call);
    AwaitNone(lock, [&](const auto& reading) { return reading.first == call; });
  }
  void Fence(uint32_t reader) {
    std::unique_lock<std::mutex> lock(mutex_);
    fenced_.insert(reader);
    AwaitNone(lock, [&](const auto& reading) { return reading.second == reader; });
  }
  bool IsCancelled(const CallId& call) {
    std::lock_guard<std::mutex> lock(mutex_);
    return cancelled_.Contains(call);
  }

 private:
  template <typename Reading>
  void AwaitNone(std::unique_lock<std::mutex>& lock, const Reading& is_one) {
    ended_.wait(lock, [&] { return std::none_of(reading_.begin(), reading_.end(), is_one); });
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  CancelledCalls cancelled_;
  std::set<uint32_t> fenced_;
  std::vector<std::pair<CallId, uint32_t>> reading_;
};

}  // namespace jaxcomm
