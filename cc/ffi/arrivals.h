// Records when the devices of this process arrive at collectives that XLA runs, and when these collectives end.
//
//   DeviceArrivals* device = TheArrivals().Device(key, about, ordinal);
//   device->Arrive();                              // when the operands are ready
//   device->End();                                 // when the collective has ended
//   std::string json = TheArrivals().Json(64, 8);  // the latest calls of the latest 64 sites
//
// A key is the same in all processes, and so is the number of a call: the n-th arrival of each rank belongs to the n-th
// call of the site. Thread-safe. Never blocks for long: CUDA's callbacks call Arrive and End. The memory is bounded:
// at most kMostSites call sites are recorded, and kKept calls for each device of a site.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace jaxcomm {

// The calls of one device at one call site.
class DeviceArrivals {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kKept = 64;
  // The kept calls cover at least this time. If more than kKept calls fall into this time, only every second, fourth, …
  // call is kept. Therefore processes that read each other's calls some seconds later still find calls with the same
  // numbers.
  static constexpr std::chrono::seconds kCovered{8};

  void Arrive(Clock::time_point now = Clock::now());
  // Does nothing if no call is open.
  void End(Clock::time_point now = Clock::now());

  // The time of the latest arrival or end.
  Clock::time_point latest() const;
  // The time for which a call has been open, or zero. After an arrival, the new call counts as open and an earlier call
  // does not. If the earlier call never ended, it has failed.
  Clock::duration OpenFor(Clock::time_point now) const;
  // Writes the counts, and at most `most_calls` of the kept calls: [number, seconds from the arrival to the end].
  void WriteJson(std::ostream& out, size_t most_calls, Clock::time_point now) const;

 private:
  struct Ended {
    int64_t number;
    double seconds;
    Clock::time_point at;
  };

  void Keep(const Ended& call);

  mutable std::mutex mutex_;
  int64_t arrived_ = 0, ended_ = 0;
  int64_t stride_ = 1;  // calls whose number is a multiple of the stride are kept
  bool is_open_ = false;
  Clock::time_point latest_{};
  std::vector<Ended> kept_;
};

class Arrivals {
 public:
  static constexpr size_t kMostSites = 4096;

  // Returns the record of a device, which is never destroyed. Returns nullptr if there are too many call sites. `about`
  // is Python's description of the site.
  DeviceArrivals* Device(int64_t key, std::string_view about, int32_t device);
  // Returns the record of a device. Returns nullptr if the device has no record at this site.
  DeviceArrivals* Find(int64_t key, int32_t device);

  // The longest time for which a call has been open; zero if no call is open.
  DeviceArrivals::Clock::duration OpenFor() const;
  // The sites with the latest calls, newest first: [{"key":"…","devices":[{"device":0,"arrived":12,"ended":11,…}]}]
  std::string Json(size_t most_sites, size_t most_calls) const;
  // The description of a site, or "" if it was never recorded.
  std::string About(int64_t key) const;

 private:
  struct Site {
    std::string about;
    std::map<int32_t, std::unique_ptr<DeviceArrivals>> devices;
  };

  mutable std::mutex mutex_;
  std::map<int64_t, Site> sites_;
};

// Never destroyed, because XLA's threads may use the records while static destructors run.
Arrivals& TheArrivals();

}  // namespace jaxcomm
