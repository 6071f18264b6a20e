// Computes the shares of the rails to a process from the measured rates of the rails.
//
//   Balance balance(shares);                      // the initial shares; a share of 0 stays 0
//   if (balance.Begin(id, rail, bytes, now)) ...  // a segment is sent; if true, shares() and rates() may have changed
//   balance.End(id, rail, bytes, now);
//
// The rate of a rail is the number of bytes that it carried, divided by the time in which it had segments in flight. A
// late process does not lower the rate, because large messages are sent only after their receiver has arrived. The
// calls of one range of sizes have the same shares. After every kCalls calls of a range, the range's shares become
// proportional to the rates if this shortens calls by more than the fraction kGain. A rail with a small share may carry
// no segment in these calls. In the next call, such a rail carries one segment of each message, so that its rate is
// measured again. Not thread-safe.
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

  // Returns whether the rates have just been evaluated. The shares may then have changed for later segments.
  bool Begin(const MessageId& id, uint32_t rail, int64_t bytes, Clock::time_point now);
  // Called when the other side has received the segment, or when the call has ended without this segment.
  void End(const MessageId& id, uint32_t rail, int64_t bytes, Clock::time_point now);

  const std::vector<RailTable::Range>& shares() const { return shares_; }
  // Returns the rate of each rail in calls of this size, in bytes per second; 0: unknown.
  std::vector<double> rates(int64_t call_bytes) const;
  // Returns the rail that must carry this segment regardless of the shares, or nullopt if the shares decide.
  std::optional<uint32_t> Trial(const MessageId& id) const;

 private:
  struct Rail {
    int64_t under_way = 0, carried = 0;  // bytes in flight, and bytes carried since the shares were last evaluated
    Clock::time_point since;
    Clock::duration busy{0};
    double rate = 0;  // bytes per second; 0: unknown
  };
  struct Range {
    explicit Range(size_t rails) : rails(rails) {}

    std::vector<Rail> rails;
    CallId call;     // the latest call
    int calls = -1;  // number of calls since the shares were last evaluated; -1 before the first call
    std::optional<uint32_t> trial;
  };

  size_t IndexOf(int64_t call_bytes) const;
  static void Divide(Range& range, std::vector<uint32_t>& shares, Clock::time_point now);

  std::vector<RailTable::Range> shares_;
  std::vector<Range> ranges_;
};

// Returns shares in proportion to the weights, which must not all be 0.
std::vector<uint32_t> SharesOf(const std::vector<double>& weights);

}  // namespace jaxcomm
