#include "cc/executor/sites/site_text.h"

#include <cstdio>
#include <vector>

#include "cc/base/hash.h"
#include "cc/base/text.h"
#include "cc/executor/sites/message_site.h"

namespace jaxcomm {
namespace {

constexpr const char* kDTypes[] = {"s8",  "s16", "s32",  "s64", "u8",  "u16", "u32",
                                   "u64", "f16", "bf16", "f32", "f64", "c64", "c128"};

// The largest number of arrays that a call's description names.
constexpr size_t kNamedLeaves = 4;

std::string Exact(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

// Describes a loss so exactly that different losses have different texts.
std::string DescribeLoss(const AllowedLoss& loss) {
  std::string shares;
  for (size_t i = 0; i < loss.shares.size(); ++i) {
    if (i > 0 && loss.shares[i] == loss.shares[i - 1]) continue;
    shares += (shares.empty() ? "" : ", ") + Exact(loss.shares[i]) +
              (i > 0 ? " from array " + std::to_string(i) + " on" : "");
  }
  std::string text = shares + " in segments of " + std::to_string(loss.segment_bytes) + " bytes";
  if (loss.time_limit_s)
    text += *loss.time_limit_s > 0 ? " after " + Exact(*loss.time_limit_s) + " s" : " after the usual time";
  if (!loss.makes_up) text += ", which are reported";
  if (loss.priority != kLastPriority) text += ", priority " + std::to_string(loss.priority);
  return text;
}

std::string DescribeSchedule(const MessageSite& site) {
  const ScheduleSelector& selector = *site.selector();
  const SiteRanks& ranks = site.ranks();
  const bool is_default = site.schedule() == ScheduleSelector::kDefault;
  for (const ScheduleSelector::LostRail& lost : selector.lost_rails()) {
    if (lost.schedule != site.schedule()) continue;
    return "while the host of rank " + std::to_string(ranks.NameOf(lost.rank)) + " lacks rail " +
           std::to_string(lost.rail);
  }
  if (selector.by_turns()) {
    return is_default ? "for no late rank"
                      : "for rank " + std::to_string(ranks.NameOf(site.schedule() - 1)) + " being late";
  }
  if (selector.tries()) return is_default ? "the default schedule in its trial" : "in its trial";
  if (!selector.has_late_rank()) return "while no host lacks a rail";
  return is_default ? "for a small lateness" : "for a great lateness";
}

}  // namespace

SiteText DescribeSite(const MessageSite& site) {
  const MessageSite::Label& label = site.label();
  const std::optional<AllowedLoss>& loss = site.collective().loss;
  const std::vector<Leaf>& leaves = site.layout().leaves();
  const uint32_t calls = label.step ? label.step->calls.load() : 0;
  std::string exact = std::to_string(calls) + "|" + label.plan + "|" + site.ranks().lists() +
                      std::to_string(site.schedule()) + "|" + std::to_string(static_cast<int>(site.collective().kind)) +
                      "|" + std::to_string(static_cast<int>(site.collective().reduction));
  for (const Leaf& leaf : leaves) {
    exact += "|" + std::string(kDTypes[static_cast<int>(leaf.dtype)]) + ":" + std::to_string(leaf.bytes);
  }
  if (loss) exact += "|" + DescribeLoss(*loss);
  for (const SiteRanks::Rank& rank : site.ranks()) {
    exact += "|" + std::to_string(rank.device) + ":" + std::to_string(rank.host) + ":" + std::to_string(rank.group);
  }
  if (site.selector()) exact += "|" + std::to_string(site.selector()->id());

  std::string values;
  for (size_t i = 0; i < leaves.size() && i < kNamedLeaves; ++i) {
    const int64_t elements = leaves[i].bytes / static_cast<int64_t>(ByteWidth(leaves[i].dtype));
    values += (i > 0 ? ", " : "") + std::string(kDTypes[static_cast<int>(leaves[i].dtype)]) + "[" +
              std::to_string(elements) + "]";
  }
  if (leaves.size() > kNamedLeaves) values += " and " + std::to_string(leaves.size() - kNamedLeaves) + " more";
  std::string text = label.name + " over '" + label.axes + "', " + values + " (" +
                     FormatBytes(site.layout().payload()) + "), plan " + label.plan;
  if (calls > 1) text += ", call " + std::to_string(label.number + 1) + " of " + std::to_string(calls);
  text += ", at " + label.where;
  if (loss) text += ", losing up to " + DescribeLoss(*loss);
  if (site.selector()) text += ", " + DescribeSchedule(site);
  if (site.is_regrouped()) text += ", groups " + site.row();
  return {text, Hash(exact + "|" + site.row())};
}

}  // namespace jaxcomm
