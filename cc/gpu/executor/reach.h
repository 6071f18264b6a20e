// The memory that an operand lies in, and the devices that may touch it: XLA's allocator decides, and CUDA's driver
// knows.
//
//   Status status = CheckReachable(data, bytes, /*devices=*/{0, 1, 2, 3});   // a kernel that tried would end the
//   process
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::fused {

// Whether all these devices may read and write it. Memory of cuMemCreate is asked for each device (XLA grants access to
// a process's devices when it maps it); of cudaMalloc peers reach all once they are enabled; of pools none is shared.
Status CheckReachable(const std::byte* data, size_t bytes, const std::vector<int>& devices);

// "cuMemCreate", "cudaMalloc", or "neither cuMemCreate's nor cudaMalloc's".
std::string MemoryKind(const std::byte* data, int device);

}  // namespace jaxcomm::fused
