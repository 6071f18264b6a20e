// The lanes for one instruction set. A lane loads elements of one type into an accumulator, which is a vector, and
// stores an accumulator as elements. Only the other _inl.h files include this file. They include it outside of any
// namespace, after JAXCOMM_ISA (a namespace) and JAXCOMM_VECTOR_BYTES are defined. Everything here has internal
// linkage, and no template of the standard library is instantiated. Otherwise the linker could put a function that was
// compiled for a newer processor into the code for an older processor.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace jaxcomm::JAXCOMM_ISA {
namespace {

constexpr size_t kVectorBytes = JAXCOMM_VECTOR_BYTES;

template <typename T, size_t kBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <typename T, size_t kBytes = kVectorBytes>
using Vector = typename VectorOf<T, kBytes>::type;

using F32 = Vector<float>;
using Half = Vector<uint16_t, kVectorBytes / 2>;
using U32 = Vector<uint32_t>;

template <typename To, typename From>
inline __attribute__((always_inline)) To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T>
struct Lane {
  using Accumulator = Vector<T>;
  static constexpr size_t kBytes = kVectorBytes;
  static inline __attribute__((always_inline)) void Load(const std::byte* from, Accumulator& value) {
    __builtin_memcpy(&value, from, sizeof(value));
  }
  static inline __attribute__((always_inline)) void Store(const Accumulator& value, std::byte* to) {
    __builtin_memcpy(to, &value, sizeof(value));
  }
};

struct BFloat16Lane {
  using Accumulator = F32;
  static constexpr size_t kBytes = kVectorBytes / 2;
  static inline __attribute__((always_inline)) void Load(const std::byte* from, Accumulator& value) {
    Half half;
    __builtin_memcpy(&half, from, sizeof(half));
    value = BitCast<F32>(__builtin_convertvector(half, U32) << 16);
  }
  // Rounds to nearest even. A NaN keeps its sign and becomes quiet.
  static inline __attribute__((always_inline)) void Store(const Accumulator& value, std::byte* to) {
    const U32 bits = BitCast<U32>(value);
    const U32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const U32 quiet = (bits >> 16) | 0x40;
    const U32 word = (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
    const Half half = __builtin_convertvector(word, Half);
    __builtin_memcpy(to, &half, sizeof(half));
  }
};

#if !defined(__AVX512F__) && !defined(__F16C__) && !defined(__aarch64__)
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t mantissa = half & 1023;
  if (exponent == 31) return BitCast<float>(sign | 0x7f800000 | (mantissa << 13) | (mantissa ? 0x400000 : 0));
  if (exponent != 0) return BitCast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // A subnormal value is mantissa * 2^-24, which f32 represents exactly.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return BitCast<float>(BitCast<uint32_t>(magnitude) | sign);
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | ((magnitude >> 13) & 0x1ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to more than 65504, the largest f16: infinity
  if (magnitude < 0x38800000) {  // a subnormal f16: adding 0.5f rounds the value to a multiple of 2^-24
    const uint32_t shifted = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f);
    return static_cast<uint16_t>(sign | (shifted - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}
#endif

struct Float16Lane {
  using Accumulator = F32;
  static constexpr size_t kBytes = kVectorBytes / 2;
  static inline __attribute__((always_inline)) void Load(const std::byte* from, Accumulator& value) {
#if defined(__AVX512F__)
    // Uses the zero-masking intrinsics, because GCC warns that the plain intrinsics read an undefined vector.
    value = BitCast<F32>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__)
    value = BitCast<F32>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__aarch64__)
    value = BitCast<F32>(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(from)))));
#else
    uint16_t half[kBytes / 2];
    __builtin_memcpy(half, from, sizeof(half));
    float whole[kBytes / 2];
    for (size_t i = 0; i < kBytes / 2; ++i) whole[i] = HalfToFloat(half[i]);
    __builtin_memcpy(&value, whole, sizeof(value));
#endif
  }
  static inline __attribute__((always_inline)) void Store(const Accumulator& value, std::byte* to) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_maskz_cvtps_ph(0xffff, BitCast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(BitCast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    vst1_u8(reinterpret_cast<uint8_t*>(to), vreinterpret_u8_f16(vcvt_f16_f32(BitCast<float32x4_t>(value))));
#else
    uint16_t half[kBytes / 2];
    for (size_t i = 0; i < kBytes / 2; ++i) half[i] = FloatToHalf(value[i]);
    __builtin_memcpy(to, half, sizeof(half));
#endif
  }
};

}  // namespace
}  // namespace jaxcomm::JAXCOMM_ISA
