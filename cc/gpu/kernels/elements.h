// Defines how each element type is stored, accumulated and combined. Results are the same as on CPUs
// (cc/kernels/reduce.h), except that the payload of a NaN may differ.
#pragma once

#include <type_traits>

#include "cc/gpu/kernels/portable.h"
#include "cc/kernels/types.h"

namespace jaxcomm::cuda {

template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  JAXCOMM_PORTABLE static Wide Widen(Stored value) { return value; }
  JAXCOMM_PORTABLE static Stored Round(Wide value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Wide = float;
  JAXCOMM_PORTABLE static Wide Widen(Stored value) { return BitCast<float>(static_cast<uint32_t>(value) << 16); }
  JAXCOMM_PORTABLE static Stored Round(Wide value) {
#ifdef __CUDA_ARCH__
    Stored rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    const uint32_t bits = BitCast<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<Stored>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  JAXCOMM_PORTABLE static Wide Widen(Stored value) {
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
#else
    const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16, magnitude = value & 0x7fff;
    if (magnitude >= 0x7c00) return BitCast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    // Moves the exponent's bias from 15 to 127. This is also correct for subnormal numbers.
    return BitCast<float>(sign | BitCast<uint32_t>(BitCast<float>(magnitude << 13) * 0x1p112f));
#endif
  }
  JAXCOMM_PORTABLE static Stored Round(Wide value) {
#ifdef __CUDA_ARCH__
    Stored rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    const uint32_t bits = BitCast<uint32_t>(value), magnitude = bits & 0x7fffffff;
    const uint32_t sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7f800000) return 0x7fff;
    if (magnitude >= 0x477ff000) return static_cast<Stored>(sign | 0x7c00);  // rounds to more than 65504: infinity
    if (magnitude < 0x38800000) {  // a subnormal f16: adding 0.5f rounds the value to a multiple of 2^-24
      return static_cast<Stored>(sign | (BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000));
    }
    return static_cast<Stored>(sign | (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13);
#endif
  }
};

template <Reduction kReduction, typename Wide>
JAXCOMM_PORTABLE Wide Combine(Wide into, Wide other) {
  if constexpr (kReduction == Reduction::kSum) {
    return static_cast<Wide>(into + other);
  } else if constexpr (kReduction == Reduction::kMax) {
    return into > other || into != into ? into : other;
  } else {
    return into < other || into != into ? into : other;
  }
}

// If `dtype` is a float of 16, 32 or 64 bits, calls visit(E()) with its element type E and returns true. Otherwise
// returns false.
template <typename Visitor>
bool VisitFloat(DType dtype, Visitor visit) {
  const auto is = [&](DType its, auto element) { return dtype == its && (visit(element), true); };
  return is(DType::kF16, Float16()) || is(DType::kBF16, BFloat16()) || is(DType::kF32, Plain<float>()) ||
         is(DType::kF64, Plain<double>());
}

// If kReduction is defined for `dtype`, calls visit(E()) with the element type E that the reduction uses, and returns
// true. Otherwise returns false. Sums of signed integers wrap, so E is unsigned. Complex numbers have only a sum, which
// adds real and imaginary parts as floats.
template <Reduction kReduction, typename Visitor>
bool VisitReduced(DType dtype, Visitor visit) {
  constexpr bool kSum = kReduction == Reduction::kSum;
  const auto is = [&](DType its, auto element) { return dtype == its && (visit(element), true); };
  return is(DType::kS8, Plain<std::conditional_t<kSum, uint8_t, int8_t>>()) ||
         is(DType::kS16, Plain<std::conditional_t<kSum, uint16_t, int16_t>>()) ||
         is(DType::kS32, Plain<std::conditional_t<kSum, uint32_t, int32_t>>()) ||
         is(DType::kS64, Plain<std::conditional_t<kSum, uint64_t, int64_t>>()) || is(DType::kU8, Plain<uint8_t>()) ||
         is(DType::kU16, Plain<uint16_t>()) || is(DType::kU32, Plain<uint32_t>()) ||
         is(DType::kU64, Plain<uint64_t>()) || (kSum && dtype == DType::kC64 && VisitFloat(DType::kF32, visit)) ||
         (kSum && dtype == DType::kC128 && VisitFloat(DType::kF64, visit)) || VisitFloat(dtype, visit);
}

}  // namespace jaxcomm::cuda
