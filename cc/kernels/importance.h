// The importance of each segment of a gradient: the mean magnitude of its elements, beside the median of a sample.
//
//   const ImportanceFn importance = FindImportance(DType::kF32);   // nullptr: no floating-point type
//   std::vector<uint32_t> bins(kBins);
//   importance(gradients, bytes / 4, 1024, 20, seed, means, bins.data());   // one pass
//   float threshold = LowerMedian(bins.data());
//   FindScale(DType::kF32)(segment, 1024, 0.5f);
//
// Of segment s the sample takes every stride-th element from FirstSampled(seed, s, stride) on. The order in which
// magnitudes are added does not depend on the processor, so means agree bit for bit wherever they are computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/kernels/reduce.h"

namespace jaxcomm {

// The sample is counted by the upper 16 bits of its float32 magnitudes, which ascend with them: no memory for the
// sample, no sorting, and a median to 8 bits, which is finer than what a sample can know.
constexpr size_t kBins = size_t{1} << 15;

// Writes one mean per segment of `segment` elements (the last may be shorter), and adds the sample to the bins.
using ImportanceFn = void (*)(const std::byte* gradients, size_t elements, size_t segment, uint32_t stride,
                              uint32_t seed, float* means, uint32_t* bins);

ImportanceFn FindImportance(DType dtype);

// Multiplies `count` elements by a factor, in place; 16-bit types are rounded once.
using ScaleFn = void (*)(std::byte* values, size_t elements, float factor);

ScaleFn FindScale(DType dtype);

// An offset in [0, stride) that looks random over the segments.
constexpr uint32_t FirstSampled(uint32_t seed, uint32_t segment, uint32_t stride) {
  uint32_t hash = seed + segment * 0x9e3779b9u;
  hash = (hash ^ (hash >> 16)) * 0x21f0aaadu;
  hash = (hash ^ (hash >> 15)) * 0x735a2d97u;
  return (hash ^ (hash >> 15)) % stride;
}

// The lower of the two middle values, or the middle one, rounded down to bfloat16; 0 of nothing. NaNs come last.
float LowerMedian(const uint32_t* bins);

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
