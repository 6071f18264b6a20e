#include "cc/gpu/nccl/attendance.h"

#include <vector>

#include "cc/base/text.h"

namespace jaxcomm::nccl {

void Attendance::Arrive() const {
  if (board != nullptr) board->Arrive(rank, number);
}

std::string Attendance::Absent() const {
  const std::vector<uint32_t> missing = board != nullptr ? board->Missing(number) : std::vector<uint32_t>();
  if (missing.empty()) return "";
  const bool several = missing.size() > 1;
  return (several ? "ranks " : "rank ") + JoinRanks(missing) + " of " + std::to_string(ranks) +
         (several ? " have" : " has") + " not arrived";
}

Status Attendance::Late(std::chrono::steady_clock::duration waited) const {
  const std::vector<uint32_t> here = board != nullptr ? board->Here(number) : std::vector<uint32_t>{rank};
  std::string who = Absent();
  if (who.empty()) who = "not all of the " + std::to_string(ranks) + " ranks have finished";
  return Status(Code::kDeadlineExceeded, "DeadlineError: " + call + ": " + who + " after " + FormatSeconds(waited) +
                                             "; " + JoinRanks(here) + (here.size() > 1 ? " wait." : " waits."));
}

Status Attendance::Lost(const Status& error) const {
  const std::string who = Absent();
  return Status(error.code(), call + ": " + (who.empty() ? "" : who + "; ") + error.message());
}

}  // namespace jaxcomm::nccl
