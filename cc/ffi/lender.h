// How jaxcomm_cuda13_xla.so, which is compiled where jaxlib has XLA's extension for collectives, serves
// jaxcomm_cuda13.so, which is compiled everywhere.
#pragma once

#include <cstdint>

#include "xla/ffi/api/c_api.h"

namespace jaxcomm {

// Positions in the devices that a step was compiled for, group after group.
struct DeviceGroups {
  const int64_t* positions;
  const int64_t* sizes;
  int64_t count;
};

// In the stage prepare it asks XLA for a communicator of this device's group, in the stage execute it fetches that: an
// ncclComm_t, which stays XLA's. 0; or 1, and `error` says in one line why XLA lends none, cut to `size`.
using Lend = int64_t(const XLA_FFI_CallFrame* frame, const DeviceGroups* groups, void** communicator, char* error,
                     int64_t size);

}  // namespace jaxcomm
