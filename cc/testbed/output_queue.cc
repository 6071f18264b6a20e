#include "cc/testbed/output_queue.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace jaxcomm {

int64_t TimeOnLink(int64_t bytes, double rate) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(bytes) / rate * 1e9));
}

void OutputQueue::Add(Frame frame, double rate, int64_t now) {
  const size_t priority = frame.priority();
  Queue& queue = queues_[priority];
  const bool important = frame.important();
  const int64_t limit = (important ? limits_.important : limits_.ordinary)[priority];
  if (held_ + frame.size() > limits_.buffer || queue.held + frame.size() > limit) {
    ++(important ? queue.counts.important_drops : queue.counts.ordinary_drops);
    return;
  }
  held_ += frame.size();
  queue.held += frame.size();
  queue.waiting.push_back({std::move(frame), now});
  if (departure_ == kNever) SendNext(rate, now);
}

Frame OutputQueue::Depart(double rate) {
  Frame frame = std::move(sent_);
  Queue& queue = queues_[frame.priority()];
  held_ -= frame.size();
  queue.held -= frame.size();
  ++queue.counts.packets;
  queue.counts.bytes += frame.size();
  SendNext(rate, departure_);
  return frame;
}

void OutputQueue::Hasten(double rate, int64_t now) {
  if (departure_ != kNever) departure_ = std::min(departure_, now + TimeOnLink(sent_.size(), rate));
}

void OutputQueue::SendNext(double rate, int64_t now) {
  departure_ = kNever;
  for (size_t priority = kPriorities; priority-- > 0 && departure_ == kNever;) {
    Queue& queue = queues_[priority];
    if (queue.waiting.empty()) continue;
    queue.counts.delays.Add(now - queue.waiting.front().since);
    sent_ = std::move(queue.waiting.front().frame);
    queue.waiting.pop_front();
    departure_ = now + TimeOnLink(sent_.size(), rate);
  }
}

}  // namespace jaxcomm
