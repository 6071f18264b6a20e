// The importance of each segment of a gradient: the mean magnitude of the segment's elements.
//
//   const ImportanceFn importance = FindImportance(DType::kF32);   // nullptr: not a floating-point type
//   importance(gradients, bytes / 4, 1024, means);   // reads each element once
//   FindScale(DType::kF32)(segment, 1024, 0.5f);
//
// Every processor adds the magnitudes in the same order, so all processors compute the same bits.
#pragma once

#include <cstddef>

#include "cc/kernels/reduce.h"

namespace jaxcomm {

// Writes the mean of each segment. A segment has `segment` elements; the last segment may be shorter.
using ImportanceFn = void (*)(const std::byte* gradients, size_t elements, size_t segment, float* means);

ImportanceFn FindImportance(DType dtype);

// Multiplies the elements by a factor, in place. Elements of 16-bit types are rounded once.
using ScaleFn = void (*)(std::byte* values, size_t elements, float factor);

ScaleFn FindScale(DType dtype);

namespace avx512 {
ImportanceFn FindImportance(DType dtype);
ScaleFn FindScale(DType dtype);
}  // namespace avx512
namespace avx2 {
ImportanceFn FindImportance(DType dtype);
ScaleFn FindScale(DType dtype);
}  // namespace avx2
namespace neon {
ImportanceFn FindImportance(DType dtype);
ScaleFn FindScale(DType dtype);
}  // namespace neon
namespace plain {
ImportanceFn FindImportance(DType dtype);
ScaleFn FindScale(DType dtype);
}  // namespace plain

}  // namespace jaxcomm
