// The shares of the rails to a process, by their measured rates.
//
//   Balance balance(shares);                      // at first; a rail without a share of a range never gets one there
//   if (balance.Begin(id, rail, bytes, now)) ...  // a segment goes out; shares() and rates() may have changed
//   balance.End(id, rail, bytes, now);
//
// A rail's rate is the bytes that it carried per time with segments under way. While a process is late, no segment is:
// large messages are sent once their receiver has arrived. Every kCalls calls of a range its shares become proportional
// to the rates, if calls would be shorter by kGain. A rail whose share is too small for a segment then carries one
// segment of each message of a call, as it may be faster again. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc/transport/rails/rail_table.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Balance {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kCalls = 25;
  static constexpr double kGain = 0.02;

  explicit Balance(std::vector<RailTable::Range> shares);

  // Returns whether the rates were evaluated; the shares may have changed, from the next segment on.
  bool Begin(const MessageId& id, uint32_t rail, int64_t bytes, Clock::time_point now);
  // The other side has the segment, or the call is over without it.
  void End(const MessageId& id, uint32_t rail, int64_t bytes, Clock::time_point now);

  const std::vector<RailTable::Range>& shares() const { return shares_; }
  // The rate of each rail in calls of this size, in bytes per second; 0: unknown.
  std::vector<double> rates(int64_t call_bytes) const;
  // The rail that carries this segment independently of the shares.
  std::optional<uint32_t> Trial(const MessageId& id) const;

 private:
  struct Rail {
    int64_t under_way = 0, carried = 0;  // bytes
    Clock::time_point since;
    Clock::duration busy{0};
    double rate = 0;  // bytes per second; 0: unknown
  };
  struct Range {
    explicit Range(size_t rails) : rails(rails) {}

    std::vector<Rail> rails;
    CallId call;     // the last one
    int calls = -1;  // since the shares were last evaluated
    std::optional<uint32_t> trial;
  };

  size_t IndexOf(int64_t call_bytes) const;
  static void Divide(Range& range, std::vector<uint32_t>& shares, Clock::time_point now);

  std::vector<RailTable::Range> shares_;
  std::vector<Range> ranges_;
};

// Shares in proportion to the weights, of which one is above 0.
std::vector<uint32_t> SharesOf(const std::vector<double>& weights);

}  // namespace jaxcomm
