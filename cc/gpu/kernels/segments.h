// Gathering segments of a gradient, putting them back, scaling them, on a GPU. A segment is `segment_bytes` of an
// array.
//
// Every pointer is of the device. All launch and return, and may be captured into a graph. Which segments are chosen
// is known to the device alone: an index that does not exist is not an error here, Pack gives zeros for it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/base/status.h"
#include "cc/kernels/types.h"

namespace jaxcomm::cuda {

// The segments with these `count` ascending indices, one after the other; beyond the array's end there are zeros.
Status PackSegments(const void* gradients, size_t bytes, size_t segment_bytes, const int32_t* indices, size_t count,
                    void* packed, cudaStream_t stream);

// The inverse, into an array of `bytes`: zeros where no segment was chosen.
Status UnpackSegments(const void* packed, const int32_t* indices, size_t count, size_t segment_bytes, void* gradients,
                      size_t bytes, cudaStream_t stream);

// Every segment times its factor; 0 drops a segment, whatever is in it. `result` may be `gradients`.
Status ScaleSegments(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, const float* factors,
                     void* result, cudaStream_t stream);

}  // namespace jaxcomm::cuda
