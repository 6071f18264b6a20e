#include "cc/gpu/nccl/arrival_report.h"

#include <vector>

#include "cc/base/text.h"

namespace jaxcomm::nccl {

void ArrivalReport::Arrive() const {
  if (arrivals != nullptr) arrivals->Arrive(rank, number);
}

std::string ArrivalReport::Absent() const {
  const std::vector<uint32_t> missing = arrivals != nullptr ? arrivals->Missing(number) : std::vector<uint32_t>();
  if (missing.empty()) return "";
  const bool plural = missing.size() > 1;
  return (plural ? "ranks " : "rank ") + JoinRanks(missing) + " of " + std::to_string(ranks) +
         (plural ? " have" : " has") + " not arrived";
}

Status ArrivalReport::Late(std::chrono::steady_clock::duration waited) const {
  const std::vector<uint32_t> here = arrivals != nullptr ? arrivals->Here(number) : std::vector<uint32_t>{rank};
  const std::vector<uint32_t> missing = arrivals != nullptr ? arrivals->Missing(number) : std::vector<uint32_t>();
  if (!missing.empty()) return DeadlineExceeded{call, missing, here, std::to_string(ranks), waited}.status();
  return Status(Code::kDeadlineExceeded,
                "DeadlineError: " + call.Text() + ": not all of the " + std::to_string(ranks) +
                    " ranks have finished after " + FormatSeconds(waited) + "; " + JoinRanks(here) +
                    (here.size() > 1 ? " wait." : " waits."),
                ErrorRecord("DeadlineError", call).Text());
}

Status ArrivalReport::Lost(const Status& error) const {
  const std::string who = Absent();
  return Status(error.code(), call.Text() + ": " + (who.empty() ? "" : who + "; ") + error.message());
}

}  // namespace jaxcomm::nccl
