// The meeting of places that are all in this process: their devices reach each other's memory as it is.
//
//   std::unique_ptr<Meeting> meeting = std::make_unique<OneProcess>(places);
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>

#include "cc/gpu/executor/meeting.h"
#include "cc/gpu/executor/places.h"

namespace jaxcomm::fused {

// Lets the devices of this process reach each other's memory.
Status ConnectPeers(const Places& places);

struct FreeOnDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<std::byte, FreeOnDevice>;

Result<DeviceMemory> AllocateOn(int device, size_t bytes);

class OneProcess : public Meeting {
 public:
  explicit OneProcess(const Places& places) : places_(places) {}

  Result<std::byte*> Allocate(size_t place, size_t bytes) override;
  Status Meet(const Status& mine) override;
  View See(size_t, size_t to) const override { return {blocks_.at(to).get(), /*origin=*/0}; }
  Status CheckReach(size_t, const std::byte*, int64_t) const override { return Status(); }

 private:
  const Places places_;
  std::map<size_t, DeviceMemory> blocks_;  // by place
};

}  // namespace jaxcomm::fused
