#include "cc/executor/calls/call_site_stats.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "cc/base/json.h"

namespace jaxcomm {
namespace {

template <typename T>
void WriteList(std::ostream& out, const std::vector<T>& values) {
  out << '[';
  for (size_t i = 0; i < values.size(); ++i) {
    out << (i ? "," : "");
    const bool is_known = values[i] == values[i];
    is_known ? out << values[i] : out << "null";
  }
  out << ']';
}

void WriteLabel(std::ostream& out, const SiteLabel& label) {
  out << "{\"name\":";
  WriteJsonString(out, label.name);
  out << ",\"axes\":";
  WriteJsonString(out, label.axes);
  out << ",\"plan\":";
  WriteJsonString(out, label.plan);
  out << ",\"ranks\":" << label.ranks << ",\"bytes\":" << label.bytes;
}

void AddTo(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(values.size());
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
}

}  // namespace

void SiteStats::Calls::Add(const Calls& later) {
  calls += later.calls;
  after_arrival += later.after_arrival;
  AddTo(arrivals, later.arrivals);
}

void SiteStats::Calls::Add(const CallRecord& call) {
  ++calls;
  after_arrival += call.after_arrival;
  AddTo(arrivals, call.arrivals);
}

void SiteStats::Record(CallRecord call, Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t ranks = call.arrivals.size();
  wait_.resize(ranks);
  late_.resize(ranks);
  const double last =
      call.waits.empty() && ranks > 0 ? *std::max_element(call.arrivals.begin(), call.arrivals.end()) : 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    wait_[rank] += call.waits.empty() ? last - call.arrivals[rank] : call.waits[rank];
  }
  for (const uint32_t rank : call.last) ++late_[rank];
  ++calls_;
  early_calls_ += call.is_early ? 1 : 0;
  lost_rail_calls_ += call.lacks_rail ? 1 : 0;
  transfer_ += call.after_arrival;
  early_share_ += call.early_share;
  spans_.At(now).Add(call);
  recent_.push_back(std::move(call));
  if (recent_.size() > kKept) recent_.pop_front();
}

void SiteStats::RecordSent() {
  std::lock_guard<std::mutex> lock(mutex_);
  wait_.resize(2);
  late_.resize(2);
  ++calls_;
}

void SiteStats::RecordFailure() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++failed_;
}

void SiteStats::RecordLoss(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  lost_bytes_ += bytes;
}

std::optional<CallRecord> SiteStats::Last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return recent_.empty() ? std::nullopt : std::optional<CallRecord>(recent_.back());
}

void SiteStats::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_ = early_calls_ = lost_rail_calls_ = failed_ = lost_bytes_ = 0;
  transfer_ = early_share_ = 0;
  wait_.clear();
  late_.clear();
  recent_.clear();
  failures_.clear();
  spans_ = TimeSpans<Calls>();
}

std::string SiteStats::Json(const SiteLabel& label, bool with_spans) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream out;
  out.precision(9);
  WriteLabel(out, label);
  out << ",\"calls\":" << calls_ << ",\"failed\":" << failed_ << ",\"early_calls\":" << early_calls_
      << ",\"lost_rail_calls\":" << lost_rail_calls_ << ",\"transfer_s\":" << transfer_
      << ",\"early_bytes_share\":" << (calls_ ? early_share_ / static_cast<double>(calls_) : 0)
      << ",\"lost_bytes\":" << lost_bytes_;
  trial_.WriteJson(out);
  out << ",\"wait_s\":";
  WriteList(out, wait_);
  out << ",\"late\":";
  WriteList(out, late_);
  out << ",\"arrivals\":[";
  for (size_t i = 0; i < recent_.size(); ++i) {
    out << (i ? "," : "");
    WriteList(out, recent_[i].arrivals);
  }
  out << "],\"work_s\":[";
  bool first = true;
  for (const CallRecord& call : recent_) {
    if (call.own.empty()) continue;
    out << (first ? "" : ",");
    WriteList(out, call.own);
    first = false;
  }
  out << "],\"after_arrival_s\":[";
  for (size_t i = 0; i < recent_.size(); ++i) out << (i ? "," : "") << recent_[i].after_arrival;
  out << "]";
  if (with_spans) WriteSpans(out);
  out << "}";
  return out.str();
}

void SiteStats::WriteCalls(std::ostream& out, const SiteLabel& label, const char*& comma) const {
  const auto begin = [&](const CallTimes& call, const std::vector<double>& arrivals) {
    const auto first = std::chrono::duration_cast<std::chrono::microseconds>(call.first.time_since_epoch());
    out << std::exchange(comma, ",");
    WriteLabel(out, label);
    out << ",\"id\":" << call.id << ",\"number\":" << call.number << ",\"at_us\":" << first.count() << ",\"arrivals\":";
    WriteList(out, arrivals);
  };
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = recent_.size() - std::min(recent_.size(), kLatest); i < recent_.size(); ++i) {
    const CallRecord& call = recent_[i];
    double last = 0;  // an unknown arrival is NaN, and std::max(last, NaN) is `last`
    for (const double arrival : call.arrivals) last = std::max(last, arrival);
    begin(call.call, call.arrivals);
    out << ",\"took_s\":" << last + call.after_arrival << ",\"processes\":[],\"error\":\"\"}";
  }
  for (const FailedCall& call : failures_) {
    begin(call.call, call.arrivals);
    out << ",\"took_s\":" << std::chrono::duration<double>(call.at - call.call.first).count() << ",\"processes\":";
    WriteList(out, call.processes);
    out << ",\"error\":";
    WriteJsonString(out, call.why);
    out << "}";
  }
}

// Writes, for each time span, the means over its calls.
void SiteStats::WriteSpans(std::ostream& out) const {
  const char* comma = "";
  out << ",\"spans\":[";
  for (const auto& span : spans_.spans()) {
    const auto count = static_cast<double>(span.value.calls);
    std::vector<double> arrivals = span.value.arrivals;
    for (double& arrival : arrivals) arrival /= count;
    out << std::exchange(comma, ",") << "{\"at_us\":" << spans_.BeginOf(span).count()
        << ",\"length_us\":" << spans_.width().count() << ",\"calls\":" << span.value.calls
        << ",\"after_arrival_s\":" << span.value.after_arrival / count << ",\"arrivals\":";
    WriteList(out, arrivals);
    out << "}";
  }
  out << "]";
}

std::shared_ptr<SiteStats> CallSiteStats::Site(const SiteLabel& label) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, is_new] = sites_.try_emplace(label);
  Kept& site = at->second;
  site.asked = ++asked_;
  if (!is_new) return site.stats;
  const std::shared_ptr<SiteStats> made = site.stats = std::make_shared<SiteStats>();
  ForgetUnused();
  return made;
}

void CallSiteStats::ForgetUnused() {
  std::map<uint64_t, SiteLabel> unused;  // keyed by `asked`, so the least recently used label is first
  for (const auto& [label, site] : sites_) {
    if (site.stats.use_count() == 1) unused.emplace(site.asked, label);
  }
  for (; unused.size() > kUnused; unused.erase(unused.begin())) sites_.erase(unused.begin()->second);
}

std::string CallSiteStats::Json(bool with_spans) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string json = "[";
  for (const auto& [label, site] : sites_) json += (json.size() > 1 ? "," : "") + site.stats->Json(label, with_spans);
  return json + "]";
}

std::string CallSiteStats::TrialsJson() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream out;
  out.precision(9);
  const char* comma = "[";
  for (const auto& [label, site] : sites_) {
    if (!site.stats->trial().has_begun()) continue;
    out << std::exchange(comma, ",");
    WriteLabel(out, label);
    site.stats->trial().WriteJson(out);
    out << "}";
  }
  return (*comma == '[' ? "[" : "") + out.str() + "]";
}

std::string CallSiteStats::CallsJson() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream out;
  out.precision(9);
  const char* comma = "";
  out << "[";
  for (const auto& [label, site] : sites_) site.stats->WriteCalls(out, label, comma);
  out << "]";
  return out.str();
}

void CallSiteStats::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : sites_) entry.second.stats->Reset();
}

}  // namespace jaxcomm
