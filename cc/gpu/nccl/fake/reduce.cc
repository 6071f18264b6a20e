// Reduces on the host at once. This is correct because the fake NCCL has already copied all earlier messages.

#include "cc/gpu/kernels/reduce.h"

#include <vector>

#include "cc/kernels/reduce.h"

namespace jaxcomm::cuda {

Status Reduce(DType dtype, Reduction reduction, const Sources& sources, void* to, size_t bytes, cudaStream_t) {
  std::vector<const std::byte*> from;
  for (size_t i = 0; i < sources.count; ++i) from.push_back(static_cast<const std::byte*>(sources.buffers[i]));
  std::byte* const out = static_cast<std::byte*>(to);
  plain::Find(dtype, reduction)(from.data(), from.size(), &out, 1, 1, bytes);
  return Status();
}

}  // namespace jaxcomm::cuda
