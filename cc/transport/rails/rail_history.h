// The history of a rail to a process over a run, in bounded memory.
//
//   RailHistory history;
//   history.Divide(/*share=*/768, now);   // and Carry, Measure, Change, as events happen
//   history.WriteJson(out);
//
// Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <ostream>
#include <string>

#include "cc/base/time_spans.h"

namespace jaxcomm {

class RailHistory {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kMostChanges = 64;  // the last ones

  // The other side has confirmed `bytes` more.
  void Carry(int64_t bytes, Clock::time_point now);
  // Its rate was measured, in bytes per second.
  void Measure(double rate, Clock::time_point now);
  // Its share of the largest calls is this one from now on.
  void Divide(uint32_t share, Clock::time_point now);
  // It was fenced for the reason `why`, or restored.
  void Change(bool is_open, const std::string& why, Clock::time_point now);

  // "spans":[…],"changes":[…]
  void WriteJson(std::ostream& out) const;

 private:
  struct Span {
    void Add(const Span& later);

    int64_t bytes = 0;
    double rates = 0;
    int64_t measured = 0;           // times
    std::optional<uint32_t> share;  // at the end of the span, if it changed
  };
  struct Changed {
    Clock::time_point at;
    bool is_open;
    std::string why;
  };

  TimeSpans<Span> spans_;
  std::deque<Changed> changes_;
};

}  // namespace jaxcomm
