// Element-wise reductions of many buffers into many, vectorised, chosen for the processor at run time.
//
//   ReduceFn reduce = FindReduce(DType::kF32, Reduction::kSum);   // nullptr: no such reduction
//   reduce(sources, 8, destinations, 8, 8, bytes);                // one pass: read 8, store 8
//
// A destination may be one of the sources (the very same address), never overlap one otherwise. Sources are combined in
// the order given, so the same sources give the same bits wherever they are computed. bf16 and f16 accumulate in f32
// and are rounded once. Integer sums and products wrap; max and min propagate NaN. With one source it copies.
#pragma once

#include <cstddef>

#include "cc/kernels/types.h"

namespace jaxcomm {

using ReduceFn = void (*)(const std::byte* const* sources, size_t num_sources, std::byte* const* destinations,
                          size_t num_destinations, size_t num_cached, size_t bytes);

ReduceFn FindReduce(DType dtype, Reduction reduction);

// One table per instruction set; each is compiled with that set's flags in a file of its own, so that what ships runs
// on any processor of the architecture. Only reduce.cc and the tests call these.
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
