// The frames that wait at one port of a switch for the link to its host: eight queues in one buffer, of which the
// highest that is not empty goes first.
//
//   OutputQueue queue(limits);
//   queue.Add(std::move(frame), rate, now);
//   if (queue.departure() <= now) Frame sent = queue.Depart(rate);
//
// A frame is dropped where the buffer has no room for it; an ordinary one also where its queue's threshold has none, an
// important one where its queue's limit has none. A frame holds its room until its last byte has left. All times are
// nanoseconds of one clock, and none comes before an earlier one. Not thread-safe.
// Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", sections 4.2.2
// and 5.2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

#include "cc/testbed/delay_histogram.h"
#include "cc/testbed/frame.h"

namespace jaxcomm {

constexpr size_t kPriorities = 8;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Of a port, in bytes of frames; by priority.
struct QueueLimits {
  int64_t buffer = 0;
  std::array<int64_t, kPriorities> ordinary = {}, important = {};
};

class OutputQueue {
 public:
  // The frames that a queue has sent and dropped, and their times in it until their first byte left.
  struct Counts {
    int64_t packets = 0, bytes = 0, ordinary_drops = 0, important_drops = 0;
    DelayHistogram delays;
  };

  explicit OutputQueue(const QueueLimits& limits) : limits_(limits) {}

  // `rate`: of the link, in bytes per second.
  void Add(Frame frame, double rate, int64_t now);

  // When the last byte of the frame on the link will have left; kNever if there is none.
  int64_t departure() const { return departure_; }
  // That frame; the next one follows it.
  Frame Depart(double rate);
  // The frame on the link needs no longer than the rate takes for it.
  void Hasten(double rate, int64_t now);

  const Counts& counts(size_t priority) const { return queues_[priority].counts; }

 private:
  struct Waiting {
    Frame frame;
    int64_t since;
  };
  struct Queue {
    std::deque<Waiting> waiting;
    int64_t held = 0;  // bytes
    Counts counts;
  };

  void SendNext(double rate, int64_t now);

  const QueueLimits limits_;
  std::array<Queue, kPriorities> queues_;
  int64_t held_ = 0;  // bytes
  Frame sent_;        // the one on the link
  int64_t departure_ = kNever;
};

// The time of a link for these bytes; at least a nanosecond.
int64_t TimeOnLink(int64_t bytes, double rate);

}  // namespace jaxcomm
