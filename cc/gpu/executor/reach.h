// Finds the kind of memory that an operand lies in, and checks that devices may access the operand. XLA's allocator
// chooses the kind of memory. CUDA's driver reports the kind and the access.
//
//   Status status = CheckReachable(data, bytes, /*devices=*/{0, 1, 2, 3});
//
// A kernel that accesses memory without permission terminates the process.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::fused {

// Fails unless all these devices may read and write the operand. cuMemCreate memory needs the driver's permission for
// each device; XLA requests this permission for all devices of a process. cudaMalloc memory passes, because enabled
// peer access covers it. Memory of a pool never passes.
Status CheckReachable(const std::byte* data, size_t bytes, const std::vector<int>& devices);

// Returns "cuMemCreate", "cudaMalloc", or "neither cuMemCreate's nor cudaMalloc's".
std::string MemoryKind(const std::byte* data, int device);

}  // namespace jaxcomm::fused
