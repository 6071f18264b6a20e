// What a call that has failed leaves in place of a sum, so that it is not taken for one.
//
//   arguments.no_sum = NoSum(DType::kBF16);   // the bits of an element, of which a narrower one has the lower
#pragma once

#include <cstdint>

#include "cc/kernels/types.h"

namespace jaxcomm::fused {

// NaN, also for both parts of a complex number; of integers the largest.
inline uint64_t NoSum(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 0x7fff;
    case DType::kF32:
    case DType::kC64:
      return 0x7fffffff;
    case DType::kF64:
    case DType::kC128:
      return 0x7fffffffffffffff;
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
      return UINT64_MAX;
    default:
      return UINT64_MAX >> (65 - 8 * ByteWidth(dtype));
  }
}

}  // namespace jaxcomm::fused
