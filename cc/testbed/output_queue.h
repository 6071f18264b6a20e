// The output queues of one port of a switch: eight queues, one per priority, that share a buffer and the link to the
// port's host. The non-empty queue with the highest priority sends first.
//
//   OutputQueue queue(limits);
//   queue.Add(std::move(frame), rate, now);
//   if (queue.departure() <= now) Frame sent = queue.Depart(rate);
//
// A frame is dropped if the buffer has no room for the frame. A queue has one limit for ordinary frames and one for
// important frames. A frame is also dropped if it would make the queue hold more bytes than the limit for frames of its
// kind. A frame occupies room until its last byte has left. All times are nanoseconds of one clock and never decrease.
// Not thread-safe.
//
// Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", sections 4.2.2, 5.2.
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

// The limits of a port, in bytes of frames. The arrays are by priority.
struct QueueLimits {
  int64_t buffer = 0;
  std::array<int64_t, kPriorities> ordinary = {}, important = {};
};

class OutputQueue {
 public:
  // Counts the frames that a queue has sent and dropped. `delays` are the times from a frame's arrival until its first
  // byte leaves.
  struct Counts {
    int64_t packets = 0, bytes = 0, ordinary_drops = 0, important_drops = 0;
    DelayHistogram delays;
  };

  explicit OutputQueue(const QueueLimits& limits) : limits_(limits) {}

  // Adds or drops a frame. `rate` is the link's rate in bytes per second.
  void Add(Frame frame, double rate, int64_t now);

  // The time when the last byte of the frame on the link leaves, or kNever if the link is idle.
  int64_t departure() const { return departure_; }
  // Removes the frame on the link, whose last byte leaves at `departure()`, and returns it. Puts the next frame on the
  // link.
  Frame Depart(double rate);
  // Applies a new rate to the frame on the link: the frame departs no later than if it started at `now` at this rate.
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
  Frame sent_;        // the frame on the link
  int64_t departure_ = kNever;
};

// Returns the nanoseconds that a link takes for these bytes, at least 1.
int64_t TimeOnLink(int64_t bytes, double rate);

}  // namespace jaxcomm
