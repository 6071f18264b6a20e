// The rail of each segment of a message: only this class defines how buffers are divided over rails.
//
//   Result<RailTable> table = RailTable::Make({{0, {1024, 0}}, {1 << 20, {820, 204}}});   // from 1 MiB on, two rails
//   table.value().RailOf(/*call_bytes=*/16 << 20, /*segment=*/4);                         // 1
//
// A message is cut into segments of one size, of which the last may be shorter. Each goes to the rail that would be
// done with it first if the rails' speeds were their shares: so any number of segments is divided as well as whole
// segments can be, and a message of few segments stays on the fastest rail. After kUnits segments every rail has
// carried its share, and the rails repeat. Immutable.
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

  // Calls of at least min_bytes, and each rail's share of them.
  struct Range {
    int64_t min_bytes;
    std::vector<uint32_t> shares;
  };

  // An error: no range for calls of no byte, ranges that do not ascend, or shares that do not sum to kUnits.
  static Result<RailTable> Make(const std::vector<Range>& ranges);

  // `call_bytes`: of the message's call, which choose the range.
  uint32_t RailOf(int64_t call_bytes, uint32_t segment) const;
  // The rails with a share in some range, in order.
  std::vector<uint32_t> rails() const;

 private:
  struct Split {
    int64_t min_bytes;
    std::array<uint8_t, kUnits> rails;  // by segment
  };

  RailTable() = default;

  std::vector<Split> splits_;
};

}  // namespace jaxcomm
