// This process among those of its job, and how ranks in several of them meet.
//
//   Result<std::unique_ptr<fused::Meeting>> meeting = ThisProcess().MeetingOf(places, "psum, data, …", patience);
//
// What it must know of the job comes from Python, through exported functions of their own. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cc/base/status.h"
#include "cc/gpu/executor/ipc_meeting.h"
#include "cc/gpu/executor/meeting.h"
#include "cc/gpu/executor/places.h"

namespace jaxcomm {

class JobProcess {
 public:
  // `job`: a name that its processes have in common and no other job has.
  void Join(std::string job, uint32_t number);
  void AddRegion(int device, const fused::Region& region);

  uint32_t number();

  // `what` is the same in all processes, and they meet in one order for the same `what`.
  Result<std::unique_ptr<fused::Meeting>> MeetingOf(const fused::Places& places, const std::string& what,
                                                    std::chrono::steady_clock::duration patience);

 private:
  std::mutex mutex_;
  std::string job_;
  uint32_t number_ = 0;
  std::map<int, fused::Region> regions_;  // by device
  std::map<std::string, uint32_t> met_;   // how often, by what
};

JobProcess& ThisProcess();

}  // namespace jaxcomm
