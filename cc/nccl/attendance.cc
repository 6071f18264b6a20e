#include "cc/nccl/attendance.h"

#include "cc/base/text.h"

namespace jaxcomm::nccl {
namespace {

std::string Plural(const std::vector<uint32_t>& ranks, const char* one, const char* several) {
  return ranks.size() > 1 ? several : one;
}

}  // namespace

void Attendance::Arrive() const {
  if (board != nullptr) board->Arrive(rank, number);
}

std::string Attendance::Absent() const {
  const std::vector<uint32_t> missing = board != nullptr ? board->Missing(number, members) : std::vector<uint32_t>();
  if (missing.empty()) return "";
  const std::string all = members.size() == ranks ? std::to_string(ranks) : "the group " + JoinRanks(members);
  return Plural(missing, "rank ", "ranks ") + JoinRanks(missing) + " of " + all + Plural(missing, " has", " have") +
         " not arrived";
}

Status Attendance::Late(std::chrono::steady_clock::duration waited) const {
  const std::vector<uint32_t> here = board != nullptr ? board->Here(number, members) : std::vector<uint32_t>{rank};
  std::string who = Absent();
  if (who.empty()) who = "not all of the " + std::to_string(members.size()) + " ranks have finished";
  return Status(Code::kDeadlineExceeded, "DeadlineError: " + call + ": " + who + " after " + FormatSeconds(waited) +
                                             "; " + JoinRanks(here) + Plural(here, " waits.", " wait."));
}

Status Attendance::Lost(const Status& error) const {
  if (Status wrong = WrongOrder(); !wrong.ok()) return wrong;
  const std::string who = Absent();
  return Status(error.code(), call + ": " + (who.empty() ? "" : who + "; ") + error.message());
}

Status Attendance::WrongOrder() const {
  const std::vector<uint32_t> astray = board != nullptr ? board->Astray(number, members) : std::vector<uint32_t>();
  if (astray.empty()) return Status();
  return InvalidArgument(call + ": " + Plural(astray, "rank ", "ranks ") + JoinRanks(astray) +
                         Plural(astray, " makes", " make") + " another call than rank " + std::to_string(rank) +
                         ".\n  Cure: all ranks must run the same program, with the same shapes, dtypes and schedules.");
}

}  // namespace jaxcomm::nccl
