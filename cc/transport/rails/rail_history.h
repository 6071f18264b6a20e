// The history of a rail to a process over a run, in bounded memory.
//
//   RailHistory history;
//   history.Divide(/*share=*/768, now);   // call Carry, Measure and Change in the same way
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

  static constexpr size_t kMostChanges = 64;  // only the latest changes are kept

  // Adds `bytes` that the other side has confirmed.
  void Carry(int64_t bytes, Clock::time_point now);
  // Records a measured rate in bytes per second.
  void Measure(double rate, Clock::time_point now);
  // Records the rail's new share in calls of the largest sizes.
  void Divide(uint32_t share, Clock::time_point now);
  // Records that the rail was restored, or fenced for the reason `why`.
  void Change(bool is_open, const std::string& why, Clock::time_point now);

  // Writes "spans":[…],"changes":[…].
  void WriteJson(std::ostream& out) const;

 private:
  struct Span {
    void Add(const Span& later);

    int64_t bytes = 0;
    double rates = 0;               // sum of the measured rates
    int64_t measured = 0;           // number of measured rates
    std::optional<uint32_t> share;  // share at the end of the span, if the share changed in the span
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
