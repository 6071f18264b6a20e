#include "cc/executor/sites/site_leaves.h"

#include <string>

namespace jaxcomm {
namespace {

// For calls up to this size, passing a reduction to another thread takes longer than reducing.
constexpr int64_t kSmallBytes = 1 << 20;

// Stores bypass the caches if the buffers of all ranks on a host together have at least this size. Such buffers and the
// transport's copies together fill the last-level cache of most processors.
constexpr int64_t kStreamBytes = 16 << 20;

Status CheckLoss(const CallName& calls, const Collective& collective, const std::vector<Leaf>& leaves) {
  if (!collective.loss) return Status();
  const AllowedLoss& loss = *collective.loss;
  const auto invalid = [&](const std::string& what) { return InvalidArgument(calls.Text() + ": a loss " + what); };
  if (collective.kind != Kind::kAllReduce || collective.reduction != Reduction::kSum) return invalid("needs a sum");
  if (loss.shares.size() != leaves.size()) {
    return invalid("has " + std::to_string(loss.shares.size()) + " shares, not one per array");
  }
  if (loss.segment_bytes < AllowedLoss::kMinSegmentBytes || loss.segment_bytes % 8 != 0) {
    return invalid("has segments of " + std::to_string(loss.segment_bytes) + " bytes; they need " +
                   std::to_string(AllowedLoss::kMinSegmentBytes) + " or more, a multiple of 8");
  }
  if (loss.time_limit_s && !(*loss.time_limit_s >= 0 && *loss.time_limit_s <= AllowedLoss::kMostSeconds)) {
    return invalid("has a time limit that is not from 0 to " + std::to_string(AllowedLoss::kMostSeconds) + " seconds");
  }
  if (!loss.makes_up && !loss.time_limit_s) return invalid("that is reported needs a time limit");
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (!(loss.shares[leaf] >= 0 && loss.shares[leaf] < 1)) return invalid("has a share outside [0, 1)");
    if (FindScale(leaves[leaf].dtype) == nullptr) return invalid("needs floats");
  }
  return Status();
}

}  // namespace

Result<SiteLeaves> SiteLeaves::Make(const CallName& calls, const Collective& collective, const SiteRanks& ranks,
                                    const std::vector<Leaf>& leaves) {
  SiteLeaves made(leaves);
  Status status = FindReduces(calls.name, collective.kind, collective.reduction, leaves, made.reduces_);
  if (status.ok()) status = CheckLoss(calls, collective, leaves);
  if (!status.ok()) return status;
  const auto group = static_cast<int64_t>(ranks.GroupOf(ranks.locals()[0].rank).size());
  const int64_t slices = collective.kind == Kind::kAllReduce ? 1 : group;  // number of slices in a rank's larger buffer
  made.streams_ = made.layout_.extent() * slices * ranks.CountHere() >= kStreamBytes;
  made.is_small_ = made.layout_.extent() <= kSmallBytes / slices;
  int64_t segments = 0;
  for (const Leaf& leaf : collective.loss ? leaves : std::vector<Leaf>()) {
    made.first_segments_.push_back(segments);
    segments += collective.loss->SegmentsOf(leaf);
  }
  return made;
}

}  // namespace jaxcomm
