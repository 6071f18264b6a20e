#include "cc/gpu/executor/failure_record.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "cc/base/error_texts.h"

namespace jaxcomm::fused {

Status FailureStatus(const CallName& name, uint64_t call, uint32_t ranks, uint32_t num_blocks,
                     const FailureRecord* records) {
  std::set<uint32_t> missing, waiting;
  const FailureRecord* slow = nullptr;
  uint64_t waited = 0;
  uint32_t slow_rank = 0;
  for (uint32_t i = 0; i < ranks * num_blocks; ++i) {
    const BlockFailure& failure = records[i].failure;
    if (records[i].call != call || failure.reason == Reason::kNone) continue;
    if (failure.reason == Reason::kStillThere) {
      return Status(Code::kInternal, name.name + " over '" + name.axes + "': rank " + std::to_string(failure.peer) +
                                         " did not leave the memory of rank " + std::to_string(i / num_blocks) +
                                         " after a call had failed; restart the process");
    }
    waiting.insert(i / num_blocks);
    if (failure.reason == Reason::kNotArrived) missing.insert(failure.peer);
    if (failure.reason == Reason::kNotDone && slow == nullptr) {
      slow = &records[i];
      slow_rank = i / num_blocks;
    }
    if (failure.reason != Reason::kPeerFailed) waited = std::max(waited, failure.waited);
  }
  if (waiting.empty()) return Status();
  for (const uint32_t rank : missing) waiting.erase(rank);
  CallName failed = name;
  failed.number = static_cast<int64_t>(call);
  if (!missing.empty()) {
    return DeadlineExceeded{failed,
                            {missing.begin(), missing.end()},
                            {waiting.begin(), waiting.end()},
                            std::to_string(ranks),
                            std::chrono::nanoseconds(waited)}
        .status();
  }
  const std::string seconds = FormatSeconds(std::chrono::nanoseconds(waited));
  std::string message = "DeadlineError: " + failed.Text() + ": ";
  ErrorRecord record("DeadlineError", failed);
  if (slow != nullptr) {
    message += "rank " + std::to_string(slow->failure.peer) + " of " + std::to_string(ranks) + " has not done op " +
               std::to_string(slow->failure.op) + " after " + seconds + "; rank " + std::to_string(slow_rank) +
               " waits for it.";
    record.AddRanks("missing", {slow->failure.peer});
    record.AddRanks("waiting", {slow_rank});
    record.Field("seconds") << std::chrono::duration<double>(std::chrono::nanoseconds(waited)).count();
  } else {
    message += "rank" + std::string(waiting.size() > 1 ? "s " : " ") + JoinRanks(waiting) + " of " +
               std::to_string(ranks) + " failed because other ranks gave up.";
  }
  return Status(Code::kDeadlineExceeded, message, record.Text());
}

std::optional<CallRecord> RecordOf(const uint64_t* words, int64_t error, const Program& program) {
  const uint32_t ranks = program.ranks();
  const uint64_t *begin = words + 1, *end = begin + ranks, *op_end = end + ranks;
  const uint64_t first = *std::min_element(begin, begin + ranks), last = *std::max_element(begin, begin + ranks);
  if (words[0] == 0 || *std::min_element(end, end + ranks) + static_cast<uint64_t>(error) < last) return std::nullopt;
  CallRecord record;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    record.arrivals.push_back(static_cast<double>(begin[rank] - first) * 1e-9);
  }
  record.last.push_back(static_cast<uint32_t>(std::max_element(begin, begin + ranks) - begin));
  record.after_arrival = static_cast<double>(std::max(*std::max_element(end, end + ranks), last) - last) * 1e-9;
  size_t early = 0, all = 0;  // numbers of reads and stores: before the last arrival, and in the whole call
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const size_t work = program.ops()[i].reads.size() + program.ops()[i].writes.size();
    all += work;
    if (op_end[i] < last) early += work;
  }
  record.early_share = all == 0 ? 0 : static_cast<double>(early) / static_cast<double>(all);
  return record;
}

}  // namespace jaxcomm::fused
