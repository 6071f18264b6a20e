// Determines the rail of each segment of a message. No other class divides messages among rails.
//
//   Result<RailTable> table = RailTable::Make({{0, {1024, 0}}, {1 << 20, {820, 204}}});   // from 1 MiB on, two rails
//   table.value().RailOf(/*call_bytes=*/16 << 20, /*segment=*/4);                         // rail 1
//
// Messages are cut into segments of one size; only the last segment of a message may be shorter. All segments of a call
// to one process are numbered together. Each segment goes to the rail that would finish it first if the speed of each
// rail were proportional to its share. For any number of segments, no other division into whole segments would then end
// sooner. A call of few segments stays on the fastest rail. After kUnits segments every rail has carried its share, and
// the sequence of rails repeats. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

class RailTable {
 public:
  static constexpr uint32_t kUnits = 1024;  // the sum of the shares of all rails
  static constexpr uint32_t kMaxRails = 64;

  // The shares of calls of at least min_bytes. shares[i] is the share of rail i, in units of 1 / kUnits.
  struct Range {
    int64_t min_bytes;
    std::vector<uint32_t> shares;
  };

  // Returns an error if the first range begins above 0, or the ranges do not ascend. Also returns an error if the
  // number of shares differs between ranges or exceeds kMaxRails, or if the shares of a range do not sum to kUnits.
  static Result<RailTable> Make(const std::vector<Range>& ranges);

  // Returns the rail of a segment. `call_bytes`: the size of the call, which selects the range. `segment`: the number
  // of the segment in the call.
  uint32_t RailOf(int64_t call_bytes, uint32_t segment) const;
  // Returns the rails with a share in any range, in ascending order.
  std::vector<uint32_t> rails() const;

 private:
  struct Split {
    int64_t min_bytes;
    std::array<uint8_t, kUnits> rails;  // the rail of each segment
  };

  RailTable() = default;

  std::vector<Split> splits_;
};

}  // namespace jaxcomm
