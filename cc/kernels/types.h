// The element types and reductions of kernels. For the types and reductions of calls, see
// jaxcomm/collectives/primitive.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxcomm {

enum class DType : uint8_t { kS8, kS16, kS32, kS64, kU8, kU16, kU32, kU64, kF16, kBF16, kF32, kF64, kC64, kC128 };
enum class Reduction : uint8_t { kSum, kMax, kMin, kProduct };

constexpr size_t ByteWidth(DType dtype) {
  switch (dtype) {
    case DType::kS8:
    case DType::kU8:
      return 1;
    case DType::kS16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kS32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kS64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 8;
    case DType::kC128:
      return 16;
  }
  return 0;
}

}  // namespace jaxcomm
