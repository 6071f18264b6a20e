// A series of values over time, in bounded memory. Each value belongs to a span of time. When the series is full, the
// length of all its spans doubles.
//
//   struct Carried { int64_t bytes = 0; void Add(const Carried& later) { bytes += later.bytes; } };
//   TimeSpans<Carried> spans;
//   spans.At(now).bytes += 4096;
//   for (const auto& span : spans.spans()) out << spans.BeginOf(span).count() << span.value.bytes;
//
// Spans without a value take no memory. The first span begins with the first call of At. Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace jaxcomm {

template <typename Value>
class TimeSpans {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kMost = 256;
  static constexpr std::chrono::microseconds kShortest{62500};

  struct Span {
    int64_t index;
    Value value;
  };

  // Returns the value of the span that contains `now`. If `now` is before the last span, returns the last span's value.
  Value& At(Clock::time_point now) {
    if (spans_.empty()) begin_ = now;
    if (IsBehindTheLast(now) && spans_.size() == kMost) Widen();
    if (IsBehindTheLast(now)) spans_.push_back({(now - begin_) / width_, Value()});
    return spans_.back().value;
  }

  const std::vector<Span>& spans() const { return spans_; }
  std::chrono::microseconds width() const { return width_; }
  // Returns the time of the steady clock at which the span begins.
  std::chrono::microseconds BeginOf(const Span& span) const {
    return std::chrono::duration_cast<std::chrono::microseconds>(begin_.time_since_epoch()) + span.index * width_;
  }

 private:
  bool IsBehindTheLast(Clock::time_point now) const {
    return spans_.empty() || (now - begin_) / width_ > spans_.back().index;
  }

  // Doubles the width of all spans until at least two spans have merged.
  void Widen() {
    while (spans_.size() == kMost) {
      width_ *= 2;
      std::vector<Span> wider;
      for (Span& span : spans_) {
        const int64_t index = span.index / 2;
        if (!wider.empty() && wider.back().index == index) {
          wider.back().value.Add(span.value);
        } else {
          wider.push_back({index, std::move(span.value)});
        }
      }
      spans_ = std::move(wider);
    }
  }

  Clock::time_point begin_;
  std::chrono::microseconds width_ = kShortest;
  std::vector<Span> spans_;
};

}  // namespace jaxcomm
