// Element-wise reductions of several source buffers into several destination buffers. They are vectorised, and chosen
// for the processor at run time.
//
//   ReduceFn reduce = FindReduce(DType::kF32, Reduction::kSum);   // nullptr: no such reduction
//   reduce(sources, 8, destinations, 8, 8, bytes);                // reads 8 buffers and stores 8 buffers in one pass
//
// A destination may be equal to a source, but must not overlap a source partly. The first `num_cached` destinations are
// stored through the caches. Stores to the other destinations bypass the caches if all of these destinations are
// aligned. Sources are combined in the order given, so the same sources give the same bits on every processor. bf16 and
// f16 values are combined in f32 and rounded once. Integer sums and products wrap. Max and min propagate NaN. With one
// source, a reduction copies.
#pragma once

#include <cstddef>

#include "cc/kernels/types.h"

namespace jaxcomm {

using ReduceFn = void (*)(const std::byte* const* sources, size_t num_sources, std::byte* const* destinations,
                          size_t num_destinations, size_t num_cached, size_t bytes);

ReduceFn FindReduce(DType dtype, Reduction reduction);

// One function per instruction set. Each is compiled in its own file with the flags of its instruction set, so that one
// binary runs on any processor of the architecture. Only reduce.cc and the tests call these functions.
namespace avx512 {
ReduceFn Find(DType dtype, Reduction reduction);
}
namespace avx2 {
ReduceFn Find(DType dtype, Reduction reduction);
}
namespace neon {
ReduceFn Find(DType dtype, Reduction reduction);
}
namespace plain {
ReduceFn Find(DType dtype, Reduction reduction);
}

}  // namespace jaxcomm
