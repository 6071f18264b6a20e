// How many bytes may be under way to one process: more while they do not queue on their way, fewer when they do or get
// lost.
//
//   window.Take(answered, round_trip, /*was_full=*/true);   // an answer has come
//   queue.set_window(window.bytes());
//
// What has come makes room for what follows, so the rate is that of the narrowest link, whatever the timers and threads
// of the hosts are worth. The window outlives a message: the next one starts with it. Not thread-safe.
// Source: MLT's delay-based control (two bounds of the delay, additive and multiplicative steps), of a window and not
// of a rate, with a brake on loss beside it; steps that grow where the line stays free are TIMELY's.
#pragma once

#include <cstdint>
#include <limits>

#include "cc/transport/udp/send_queue.h"

namespace jaxcomm {

class CongestionWindow {
 public:
  // `most`: what the receiver has room for.
  CongestionWindow(int64_t packet_bytes, int64_t most);

  int64_t bytes() const { return bytes_; }

  // `round_trip`: nanoseconds, without the time that the receiver took. `was_full`: more would have been sent.
  void Take(const Answered& answered, int64_t round_trip, bool was_full);

 private:
  void EndRound();
  double DelayFactor();
  double LossFactor();

  const int64_t packet_bytes_, least_, most_;
  int64_t bytes_;
  int64_t base_ = std::numeric_limits<int64_t>::max();  // the shortest round trip
  // Of the round: until what was under way when it began has been answered.
  int64_t left_;                                            // bytes
  int64_t shortest_ = std::numeric_limits<int64_t>::max();  // round trip
  bool was_full_ = false;
  int64_t free_rounds_ = 0;  // in a row, in which nothing queued
  bool has_queued_ = false;
  int64_t packets_ = 0, lost_ = 0;  // since the last look at the loss
};

}  // namespace jaxcomm
