#include "cc/ffi/sites/site_record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "cc/ffi/values.h"

namespace jaxcomm {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoRank = -2, kMostRanks = 1 << 20, kMostBytes = int64_t{1} << 40, kMostPriority = kLastPriority;

// Reads the fields of a record in order. After a damaged field, numbers are 0, texts are "", and lists end.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : begin_(bytes.data()), rest_(bytes) {}

  int64_t Number(int64_t least, int64_t most) {
    const int64_t number = Digits();
    if (!Skip(' ') || number < least || number > most) ok_ = false;
    return ok_ ? number : 0;
  }
  double Real() {
    const int64_t bits = Number(std::numeric_limits<int64_t>::min(), kMost);
    double number;
    std::memcpy(&number, &bits, sizeof(number));
    ok_ = ok_ && std::isfinite(number);
    return ok_ ? number : 0;
  }
  std::string Text() {
    const int64_t bytes = Digits();
    if (!Skip(':') || bytes < 0 || rest_.size() < static_cast<size_t>(bytes)) ok_ = false;
    if (!ok_) return "";
    std::string text(rest_.substr(0, static_cast<size_t>(bytes)));
    rest_.remove_prefix(text.size());
    Skip(' ');
    return text;
  }
  template <typename Read>
  void List(const Read& read) {
    for (int64_t left = Number(0, kMost); ok_ && left > 0; --left) read();
  }
  bool Flag() { return Number(0, 1) == 1; }

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }
  size_t position() const { return static_cast<size_t>(rest_.data() - begin_); }

 private:
  int64_t Digits() {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    ok_ = ok_ && error == std::errc();
    if (ok_) rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return number;
  }
  bool Skip(char expected) {
    ok_ = ok_ && !rest_.empty() && rest_.front() == expected;
    if (ok_) rest_.remove_prefix(1);
    return ok_;
  }

  const char* const begin_;
  std::string_view rest_;
  bool ok_ = true;
};

SiteRecord::Group ReadGroup(FieldReader& in) {
  SiteRecord::Group group;
  in.List([&] {
    const auto process = static_cast<uint32_t>(in.Number(0, std::numeric_limits<int32_t>::max()));
    group.ranks.push_back({process, static_cast<int32_t>(in.Number(0, std::numeric_limits<int32_t>::max()))});
  });
  in.List([&] { group.schedules.push_back(in.Text()); });
  return group;
}

// Returns the number of schedules that a group of `ranks` ranks has at a site without a rule.
size_t SchedulesOf(const SiteRecord& record, size_t ranks) {
  return ranks == 1 ? 0 : record.groups_by_operand ? ranks - 1 : 1;
}

Status Check(const SiteRecord& record) {
  const auto invalid = [&](const std::string& message) { return InvalidArgument(record.who() + ": " + message); };
  std::set<std::pair<uint32_t, int32_t>> devices;
  bool is_selecting = false;
  for (size_t i = 0; i < record.groups.size(); ++i) {
    const auto& [ranks, schedules] = record.groups[i];
    const std::string group = "group " + std::to_string(i) + " of " + std::to_string(ranks.size()) + " ranks ";
    for (const SiteRecord::Device& device : ranks) {
      if (devices.emplace(device.process, device.number).second) continue;
      return invalid(group + "has device " + std::to_string(device.number) + " twice");
    }
    if (ranks.size() == 1 && (record.kind != Kind::kAllReduce || record.groups_by_operand)) {
      return invalid("group " + std::to_string(i) + " has one rank");
    }
    const size_t needed = SchedulesOf(record, ranks.size());
    const bool selects =
        record.rule && needed == 1 &&
        schedules.size() == ScheduleSelector::Count(*record.rule, ranks.size()) + record.lost_rails.size();
    if (ranks.empty() || (schedules.size() != needed && !selects)) return invalid(group + "lacks its schedule");
    const bool has_late_rank =
        !selects || record.rule->rank >= ScheduleSelector::kNoRank || record.rule->rank < ranks.size();
    if (!has_late_rank) return invalid(group + "lacks its late rank");
    const bool has_ranks =
        std::all_of(record.lost_rails.begin(), record.lost_rails.end(),
                    [&ranks = ranks](const SiteRecord::LostRail& lost) { return lost.rank < ranks.size(); });
    if (!has_ranks) return invalid(group + "lacks the rank of a lost rail");
    is_selecting = is_selecting || selects;
    if (record.groups_by_operand && ranks.size() != record.groups[0].ranks.size())
      return invalid("its groups differ in size");
  }
  if (record.groups.empty()) return invalid("it has no group");
  const int special = record.groups_by_operand + record.loss.has_value() + record.rule.has_value();
  const bool is_sum = record.kind == Kind::kAllReduce && record.reduction == Reduction::kSum;
  // Only sums between processes can store their results elsewhere.
  const bool must_be_in_place =
      record.kind == Kind::kAllReduce && (!record.between || record.groups_by_operand || record.loss);
  if (special > 1 || (must_be_in_place && !record.is_in_place) ||
      ((record.groups_by_operand || record.loss) && !is_sum) || (record.loss && !record.between)) {
    return invalid("its attributes do not fit together");
  }
  if (!record.lost_rails.empty() && !record.between) return invalid("only a call between processes can lose rails");
  if (record.rule && (!is_selecting || (record.between && record.groups.size() > 1))) {
    return invalid("only one group, with the late rank in it, may select one of several schedules");
  }
  return Status();
}

}  // namespace

Result<SiteRecord> SiteRecord::Decode(std::string_view bytes) {
  if (bytes.size() > kMaxBytes) {
    return InvalidArgument("a call site's record has " + std::to_string(bytes.size()) + " bytes; at most " +
                           std::to_string(kMaxBytes) + " are read");
  }
  FieldReader in(bytes);
  SiteRecord record;
  record.name = in.Text();
  record.axes = in.Text();
  const std::string kind = in.Text(), reduction = in.Text();
  record.plan = in.Text();
  record.groups_by_operand = in.Flag();
  in.List([&] { record.groups.push_back(ReadGroup(in)); });
  if (in.Flag()) {
    // The number -1 stands for ScheduleSelector::kAnyRank, -2 for kNoRank.
    const auto rank = static_cast<uint32_t>(in.Number(kNoRank, kMostRanks));
    const double seconds = in.Real();
    record.rule = ScheduleSelector::Rule{rank, seconds, in.Flag()};
    in.List([&] {
      const auto rank = static_cast<uint32_t>(in.Number(0, kMostRanks));
      record.lost_rails.push_back({rank, in.Text()});
    });
  }
  if (in.Flag()) {
    record.loss = AllowedLoss();
    in.List([&] { record.loss->shares.push_back(in.Real()); });
    record.loss->segment_bytes = in.Number(1, kMostBytes);
    if (in.Flag()) record.loss->time_limit_s = in.Real();
    record.loss->makes_up = in.Flag();
    if (in.Flag()) record.loss->priority = static_cast<uint32_t>(in.Number(0, kMostPriority));
  }
  if (in.Flag()) {
    record.between.emplace();
    record.between->module = in.Number(std::numeric_limits<int64_t>::min(), kMost);
    record.between->lowering = in.Number(0, kMost);
    record.between->number = in.Number(0, kMost);
    record.between->line = in.Text();
  }
  record.is_in_place = in.Flag();
  if (!in.at_end()) {
    return InvalidArgument("a call site's record is damaged at byte " + std::to_string(in.position()) +
                           ".\n  Cure: recompile the step with this jaxcomm.");
  }
  const std::optional<Kind> known_kind = ParseKind(kind);
  const std::optional<Reduction> known_reduction = ParseReduction(reduction);
  if (!known_kind || !known_reduction) {
    return InvalidArgument(record.who() + ": unknown kind '" + kind + "' or reduction '" + reduction + "'");
  }
  record.kind = *known_kind;
  record.reduction = *known_reduction;
  if (Status status = Check(record); !status.ok()) return status;
  return record;
}

}  // namespace jaxcomm
