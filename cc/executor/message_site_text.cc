// The text by which errors name the calls of a site, and the fingerprint by which ranks know each other's calls.
#include <cstdio>
#include <string>

#include "cc/base/error_texts.h"
#include "cc/base/hash.h"
#include "cc/base/text.h"
#include "cc/executor/message_site.h"

namespace jaxcomm {
namespace {

constexpr const char* kDTypes[] = {"s8",  "s16", "s32",  "s64", "u8",  "u16", "u32",
                                   "u64", "f16", "bf16", "f32", "f64", "c64", "c128"};

// The number of arrays that a call's description names.
constexpr size_t kNamedLeaves = 4;

// So exactly that different losses are different texts.
std::string DescribeLoss(const AllowedLoss& loss) {
  std::string shares;
  for (size_t i = 0; i < loss.shares.size(); ++i) {
    if (i > 0 && loss.shares[i] == loss.shares[i - 1]) continue;
    char share[32];
    std::snprintf(share, sizeof(share), "%.17g", loss.shares[i]);
    shares +=
        (shares.empty() ? "" : ", ") + std::string(share) + (i > 0 ? " from array " + std::to_string(i) + " on" : "");
  }
  return shares + " in segments of " + std::to_string(loss.segment_bytes) + " bytes";
}

}  // namespace

void MessageSite::Describe() {
  const std::vector<Leaf>& leaves = layout().leaves();
  const uint32_t calls = label_.step ? label_.step->calls.load() : 0;
  std::string exact = std::to_string(calls) + "|" + label_.plan + "|" + lists() + std::to_string(schedule_) + "|" +
                      std::to_string(static_cast<int>(kind_)) + "|" + std::to_string(static_cast<int>(reduction_));
  for (const Leaf& leaf : leaves) {
    exact += "|" + std::string(kDTypes[static_cast<int>(leaf.dtype)]) + ":" + std::to_string(leaf.bytes);
  }
  if (loss_) exact += "|" + DescribeLoss(*loss_);
  for (const Rank& rank : ranks_) {
    exact += "|" + std::to_string(rank.device) + ":" + std::to_string(rank.host) + ":" + std::to_string(rank.group);
  }
  if (selector_) exact += "|" + std::to_string(selector_->id());
  fingerprint_ = Hash(exact + "|" + row_);

  std::string values;
  for (size_t i = 0; i < leaves.size() && i < kNamedLeaves; ++i) {
    const int64_t elements = leaves[i].bytes / static_cast<int64_t>(ByteWidth(leaves[i].dtype));
    values += (i > 0 ? ", " : "") + std::string(kDTypes[static_cast<int>(leaves[i].dtype)]) + "[" +
              std::to_string(elements) + "]";
  }
  if (leaves.size() > kNamedLeaves) values += " and " + std::to_string(leaves.size() - kNamedLeaves) + " more";
  text_ = label_.name + " over '" + label_.axes + "', " + values + " (" + FormatBytes(layout().payload()) + "), plan " +
          label_.plan;
  if (calls > 1) text_ += ", call " + std::to_string(label_.number + 1) + " of " + std::to_string(calls);
  text_ += ", at " + label_.where;
  if (loss_) text_ += ", losing up to " + DescribeLoss(*loss_);
  if (selector_) text_ += ", " + DescribeSchedule();
  if (is_regrouped()) text_ += ", groups " + row_;
}

std::string MessageSite::lists() const {
  std::string names;
  for (const std::string& list : lists_) names += list + ",";
  return names;
}

std::string MessageSite::DescribeSchedule() const {
  const bool is_default = schedule_ == ScheduleSelector::kDefault;
  for (const ScheduleSelector::LostRail& lost : selector_->lost_rails()) {
    if (lost.schedule != schedule_) continue;
    return "while the host of rank " + std::to_string(NameOf(lost.rank)) + " lacks rail " + std::to_string(lost.rail);
  }
  if (selector_->by_turns()) {
    return is_default ? "for no late rank" : "for rank " + std::to_string(NameOf(schedule_ - 1)) + " being late";
  }
  if (selector_->tries()) return is_default ? "the default schedule in its trial" : "in its trial";
  if (!selector_->has_late_rank()) return "while no host lacks a rail";
  return is_default ? "for a small lateness" : "for a great lateness";
}

Status MessageSite::Differs(const CallName& call, uint32_t rank, const std::string& text, uint32_t mine) const {
  const size_t alike = text_.size() - row_.size();
  if (is_regrouped() && text.compare(0, alike, text_, 0, alike) == 0) {
    return Mismatch{call, NameOf(rank), text.substr(alike), NameOf(mine), row_}.status();
  }
  return DifferentCalls{call, {NameOf(rank), PlaceOf(rank), text}, {NameOf(mine), PlaceOf(mine), text_}}.status();
}

}  // namespace jaxcomm
