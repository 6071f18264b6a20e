// The launcher of the reduction, on the host.

#include "cc/gpu/kernels/reduce.h"

#include <algorithm>
#include <vector>

#include "cc/gpu/executor/error.h"
#include "cc/kernels/reduce.h"

namespace jaxcomm::cuda {

Status Reduce(DType dtype, Reduction reduction, const Sources& sources, void* to, size_t bytes, cudaStream_t) {
  std::vector<const std::byte*> from(sources.count);
  std::transform(sources.buffers, sources.buffers + sources.count, from.begin(),
                 [](const void* each) { return static_cast<const std::byte*>(each); });
  std::byte* const out = static_cast<std::byte*>(to);
  plain::Find(dtype, reduction)(from.data(), from.size(), &out, 1, 1, bytes);
  return fused::CudaError("reduce", cudaGetLastError());  // as launches ask
}

}  // namespace jaxcomm::cuda
