// What CUDA's driver knows of an address on a device.
#pragma once

#include "cc/base/status.h"
#include "cc/gpu/executor/ipc_peer_memory.h"

namespace jaxcomm {

// Whether other devices and processes can be let reach it.
Status CheckReachable(const void* data);

// The allocation in which it lies.
Result<fused::Region> RegionOf(const void* data);

}  // namespace jaxcomm
