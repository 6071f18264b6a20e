#include "cc/gpu/ffi/processes.h"

#include <cstdio>
#include <functional>
#include <utility>

#include "cc/base/c_function.h"
#include "cc/gpu/executor/one_process.h"
#include "cc/gpu/ffi/memory.h"
#include "cc/gpu/ffi/runtime.h"

namespace jaxcomm {

JobProcess& ThisProcess() {
  static JobProcess* process = std::make_unique<JobProcess>().release();
  return *process;
}

void JobProcess::Join(std::string job, uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  job_ = std::move(job);
  number_ = number;
}

void JobProcess::AddRegion(int device, const fused::Region& region) {
  std::lock_guard<std::mutex> lock(mutex_);
  regions_[device] = region;
}

uint32_t JobProcess::number() {
  std::lock_guard<std::mutex> lock(mutex_);
  return number_;
}

Result<std::unique_ptr<fused::PeerMemory>> JobProcess::PeerMemoryOf(const fused::Slots& slots, const std::string& call,
                                                                    std::chrono::steady_clock::duration timeout) {
  if (slots.here.size() == slots.all.size()) return {std::make_unique<fused::OneProcess>(slots)};
  std::lock_guard<std::mutex> lock(mutex_);
  if (job_.empty()) {
    return InvalidArgument(
        "the core has not been told of the job's other processes.\n  Cure: lower the step in this one, too.");
  }
  char hash[20];
  std::snprintf(hash, sizeof(hash), "%016zx", std::hash<std::string>()(call));
  const std::string name = job_ + "-" + hash + "-" + std::to_string(connected_[call]++);
  return {std::make_unique<fused::IpcPeerMemory>(name, slots, regions_, timeout)};
}

// Tells the core of the job, where ranks may live in several processes.
JAXCOMM_EXPORT int jaxcomm_fused_join(const char* job, uint32_t process, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { ThisProcess().Join(job, process); });
}

// Tells it that operands on a device lie where this address does.
JAXCOMM_EXPORT int jaxcomm_fused_region(int device, uint64_t address, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<fused::Region> region = RegionOf(reinterpret_cast<const void*>(address));
    if (region.ok()) ThisProcess().AddRegion(device, region.value());
    return region.status();
  });
}

}  // namespace jaxcomm
