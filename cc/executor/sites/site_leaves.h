// The properties that follow from the collective and the arrays of a site's calls: the layout, the kernels, and whether
// stores bypass the caches.
//
//   Result<SiteLeaves> leaves =
//       SiteLeaves::Make({"psum", "data"}, {Kind::kAllReduce, Reduction::kSum}, ranks, {{DType::kF32, 64}});
//   leaves.value().layout().payload();
//
// Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"
#include "cc/executor/calls/kind.h"
#include "cc/executor/calls/layout.h"
#include "cc/executor/sites/site_ranks.h"
#include "cc/kernels/importance.h"
#include "cc/kernels/reduce.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// The part of a sum that the network may lose.
struct AllowedLoss {
  std::vector<double> shares;  // by leaf: the largest share of each message's bytes that may be lost
  int64_t segment_bytes = 0;   // the size of a leaf's segments, each of which is important or not as a whole
  // The time limit within which nothing may be lost. It begins when the adding rank arrives. 0: the time limit follows
  // the median of the earlier calls. nullopt: there is no time limit, so bytes may be lost at any time.
  std::optional<double> time_limit_s = std::nullopt;
  // Whether a lost segment of one rank's operand counts as the mean of the other ranks' segments. If not, it counts as
  // zeros, and the rank gets a report of its lost segments. Reports need a time limit, because segments are always lost
  // as a whole only with a time limit.
  bool makes_up = true;
  uint32_t priority = kLastPriority;  // of the sum's messages; see Receiver

  bool has_reports() const { return !makes_up; }

  static constexpr int64_t kMinSegmentBytes = 1024;
  static constexpr double kMostSeconds = 1e6;

  int64_t SegmentsOf(const Leaf& leaf) const { return (leaf.bytes + segment_bytes - 1) / segment_bytes; }
};

struct Collective {
  Kind kind;
  Reduction reduction;
  std::optional<AllowedLoss> loss = std::nullopt;
  bool is_in_place = true;  // only for all-reduces: whether results and operands share memory
};

class SiteLeaves {
 public:
  // Fails if a type has no kernel, or a loss does not fit the leaves.
  static Result<SiteLeaves> Make(const CallName& calls, const Collective& collective, const SiteRanks& ranks,
                                 const std::vector<Leaf>& leaves);

  const Layout& layout() const { return layout_; }
  const std::vector<ReduceFn>& reduces() const { return reduces_; }
  // The kernel that multiplies the elements of a leaf by a factor.
  ScaleFn scale(size_t leaf) const { return FindScale(layout_.leaves()[leaf].dtype); }
  // Only for lossy sums: the index of a leaf's first segment among the segments of all leaves.
  int64_t FirstSegment(size_t leaf) const { return first_segments_[leaf]; }
  // Whether stores bypass the caches if no task reads the stored bytes again.
  bool streams() const { return streams_; }
  // Whether a call is so small that waking threads would take most of the call's time.
  bool is_small() const { return is_small_; }

 private:
  explicit SiteLeaves(const std::vector<Leaf>& leaves) : layout_(leaves) {}

  Layout layout_;
  std::vector<ReduceFn> reduces_;        // one per leaf
  std::vector<int64_t> first_segments_;  // by leaf, only for lossy sums: the index of the leaf's first segment
  bool streams_ = false, is_small_ = false;
};

}  // namespace jaxcomm
