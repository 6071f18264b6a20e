// Reads the groups of a call from a row, which is an operand of the call. The row has the group number of every rank;
// group numbers are from 0 to the number of ranks - 1.
//
//   Status status = TakeRow("pmean", ranks, leaves, buffers);   // from a rank's first operand
//   GroupNumbers row = RowOf(buffers, ranks);
//   status = CheckRow("pmean over 'data'", rank, row);
//   std::vector<uint32_t> ranks = MembersOf(row, /*group=*/0);  // ascending
//   std::string text = TextOf(row);                             // "[0 1 0 1]"
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"

namespace jaxcomm {

using GroupNumbers = std::vector<int32_t>;

inline Status TakeRow(const std::string& name, uint32_t ranks, std::vector<Leaf>& leaves, Buffers& buffers) {
  const Leaf row = {DType::kS32, static_cast<int64_t>(ranks * sizeof(int32_t))};
  return TakeFirst(row,
                   name + ": the first operand must be int32[" + std::to_string(ranks) + "], the group of every rank",
                   leaves, buffers);
}

inline GroupNumbers RowOf(const Buffers& buffers, size_t ranks) {
  GroupNumbers row(ranks);
  std::memcpy(row.data(), buffers.leading, ranks * sizeof(int32_t));
  return row;
}

inline std::string TextOf(const GroupNumbers& row) {
  std::string text;
  for (const int32_t group : row) text += (text.empty() ? "" : " ") + std::to_string(group);
  return "[" + text + "]";
}

inline std::vector<uint32_t> MembersOf(const GroupNumbers& row, int32_t group) {
  std::vector<uint32_t> members;
  for (uint32_t rank = 0; rank < row.size(); ++rank) {
    if (row[rank] == group) members.push_back(rank);
  }
  return members;
}

inline Status CheckRow(const std::string& call, uint32_t rank, const GroupNumbers& row) {
  for (size_t of = 0; of < row.size(); ++of) {
    if (row[of] < 0 || row[of] >= static_cast<int32_t>(row.size())) {
      return InvalidArgument(call + ": rank " + std::to_string(rank) + " says that rank " + std::to_string(of) +
                             " is in group " + std::to_string(row[of]) + "; groups are 0 to " +
                             std::to_string(row.size() - 1) +
                             ".\n  Cure: pass a plan's `groups.table`, or the result of `train.adjust_groups`.");
    }
  }
  return Status();
}

}  // namespace jaxcomm
