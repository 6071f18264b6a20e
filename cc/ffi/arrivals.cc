#include "cc/ffi/arrivals.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "cc/base/c_function.h"

namespace jaxcomm {
namespace {

double Seconds(DeviceArrivals::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void DeviceArrivals::Arrive(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  ++arrived_;
  is_open_ = true;
  latest_ = now;
}

void DeviceArrivals::End(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;
  ++ended_;
  is_open_ = false;
  if (arrived_ % stride_ == 0) Keep({arrived_, Seconds(now - latest_), now});
  latest_ = now;
}

void DeviceArrivals::Keep(const Ended& call) {
  if (kept_.size() == kKept) {
    if (call.at - kept_.front().at < kCovered) {
      stride_ *= 2;
      const auto is_between = [&](const Ended& each) { return each.number % stride_ != 0; };
      kept_.erase(std::remove_if(kept_.begin(), kept_.end(), is_between), kept_.end());
    } else {
      kept_.erase(kept_.begin());
    }
  }
  if (call.number % stride_ == 0) kept_.push_back(call);
}

DeviceArrivals::Clock::time_point DeviceArrivals::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

DeviceArrivals::Clock::duration DeviceArrivals::OpenFor(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return is_open_ ? std::max(now - latest_, Clock::duration(1)) : Clock::duration::zero();
}

void DeviceArrivals::WriteJson(std::ostream& out, size_t most_calls, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  out << "\"arrived\":" << arrived_ << ",\"ended\":" << ended_ << ",\"is_open\":" << (is_open_ ? "true" : "false")
      << ",\"for_s\":" << Seconds(now - latest_) << ",\"calls\":[";
  // Writes the calls whose numbers are multiples of a power of two, so that other processes choose the same calls.
  int64_t stride = stride_;
  const auto is_shown = [&](const Ended& each) { return each.number % stride == 0; };
  while (static_cast<size_t>(std::count_if(kept_.begin(), kept_.end(), is_shown)) > most_calls) stride *= 2;
  const char* comma = "";
  for (const Ended& each : kept_) {
    if (is_shown(each)) out << std::exchange(comma, ",") << '[' << each.number << ',' << each.seconds << ']';
  }
  out << ']';
}

DeviceArrivals* Arrivals::Device(int64_t key, std::string_view about, int32_t device) {
  const std::lock_guard lock(mutex_);
  auto site = sites_.find(key);
  if (site == sites_.end()) {
    if (sites_.size() == kMostSites) return nullptr;
    site = sites_.emplace(key, Site{std::string(about), {}}).first;
  }
  std::unique_ptr<DeviceArrivals>& found = site->second.devices[device];
  if (!found) found = std::make_unique<DeviceArrivals>();
  return found.get();
}

DeviceArrivals* Arrivals::Find(int64_t key, int32_t device) {
  const std::lock_guard lock(mutex_);
  const auto site = sites_.find(key);
  if (site == sites_.end()) return nullptr;
  const auto found = site->second.devices.find(device);
  return found == site->second.devices.end() ? nullptr : found->second.get();
}

DeviceArrivals::Clock::duration Arrivals::OpenFor() const {
  const auto now = DeviceArrivals::Clock::now();
  DeviceArrivals::Clock::duration longest{};
  const std::lock_guard lock(mutex_);
  for (const auto& [key, site] : sites_) {
    for (const auto& [ordinal, device] : site.devices) longest = std::max(longest, device->OpenFor(now));
  }
  return longest;
}

std::string Arrivals::Json(size_t most_sites, size_t most_calls) const {
  const auto now = DeviceArrivals::Clock::now();
  std::ostringstream out;
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<DeviceArrivals::Clock::time_point, int64_t>> latest;
  for (const auto& [key, site] : sites_) {
    DeviceArrivals::Clock::time_point at{};
    for (const auto& [ordinal, device] : site.devices) at = std::max(at, device->latest());
    latest.emplace_back(at, key);
  }
  std::sort(latest.rbegin(), latest.rend());
  latest.resize(std::min(latest.size(), most_sites));
  out << '[';
  const char* comma = "";
  for (const auto& [at, key] : latest) {
    // The key is written as a text, because some JSON readers round numbers beyond 2^53.
    out << std::exchange(comma, ",") << "{\"key\":\"" << key << "\",\"devices\":[";
    const char* inner = "";
    for (const auto& [ordinal, device] : sites_.at(key).devices) {
      out << std::exchange(inner, ",") << "{\"device\":" << ordinal << ',';
      device->WriteJson(out, most_calls, now);
      out << '}';
    }
    out << "]}";
  }
  out << ']';
  return out.str();
}

std::string Arrivals::About(int64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto site = sites_.find(key);
  return site == sites_.end() ? "" : site->second.about;
}

Arrivals& TheArrivals() {
  static Arrivals* const arrivals = std::make_unique<Arrivals>().release();
  return *arrivals;
}

// Stores the seconds for which a call has been open; 0 if no call is open.
JAXCOMM_EXPORT int jaxcomm_arrivals_open(double* seconds, JaxcommText* error) {
  return Answer(error, [&] { *seconds = Seconds(TheArrivals().OpenFor()); });
}

JAXCOMM_EXPORT int jaxcomm_arrivals(int64_t most_sites, int64_t most_calls, JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] {
    CopyText(TheArrivals().Json(static_cast<size_t>(most_sites), static_cast<size_t>(most_calls)), json);
  });
}

JAXCOMM_EXPORT int jaxcomm_arrivals_about(int64_t key, JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] { CopyText(TheArrivals().About(key), text); });
}

}  // namespace jaxcomm
