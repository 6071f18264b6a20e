// The body of every instruction set's reductions. Include once per .cc, after defining JAXCOMM_ISA (a namespace) and
// JAXCOMM_VECTOR_BYTES. Everything here but Find has internal linkage, and nothing of the standard library is
// instantiated, so that no code compiled for a newer processor can be linked into another file's.

#include <cstddef>
#include <cstdint>

#include "cc/kernels/reduce.h"

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

// A lane says how one vector of elements is loaded into its accumulator and stored from it.
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
  // Round to nearest even; a NaN keeps its sign and becomes quiet.
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
  // Subnormal: mantissa * 2^-24, exact in f32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return BitCast<float>(BitCast<uint32_t>(magnitude) | sign);
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | ((magnitude >> 13) & 0x1ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds beyond 65504
  if (magnitude < 0x38800000) {                       // subnormal: add 0.5, whose last bit weighs 2^-24
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
    // The zero-masking forms: the plain ones read an undefined vector, of which GCC warns.
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

template <Reduction kReduction, typename V>
inline __attribute__((always_inline)) void Combine(V& into, const V& other) {
  if constexpr (kReduction == Reduction::kSum) {
    into = into + other;
  } else if constexpr (kReduction == Reduction::kMax) {
    into = ((into > other) | (into != into)) ? into : other;
  } else {
    into = ((into < other) | (into != into)) ? into : other;
  }
}

// Long enough that memory sees long runs of one destination, short enough for the first cache.
constexpr size_t kTileBytes = 4096;

// Stores a tile past the caches, where the architecture can.
inline void StoreStreaming(const std::byte* tile, std::byte* to) {
  for (size_t at = 0; at < kTileBytes; at += kVectorBytes) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_load_si512(tile + at));
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + at)));
#elif defined(__x86_64__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_load_si128(reinterpret_cast<const __m128i*>(tile + at)));
#else
    __builtin_memcpy(to + at, tile + at, kVectorBytes);
#endif
  }
}

// No lock orders streaming stores: whoever is told that they are done must see them.
inline void FenceStreaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Combines the bytes [begin, end) of all sources and stores them to the destinations and, unless it is null, from the
// beginning of `tile` on. Sums one block of kUnroll vectors before it stores it, so that the sum lives in registers.
template <typename L, Reduction kReduction>
void ReduceRange(const std::byte* const* sources, size_t num_sources, std::byte* const* destinations,
                 size_t num_destinations, std::byte* tile, size_t begin, size_t end) {
  constexpr size_t kUnroll = 4;
  constexpr size_t kBlock = kUnroll * L::kBytes;
  size_t at = begin;
  for (; at + kBlock <= end; at += kBlock) {
    typename L::Accumulator block[kUnroll];
    for (size_t i = 0; i < kUnroll; ++i) L::Load(sources[0] + at + i * L::kBytes, block[i]);
    for (size_t s = 1; s < num_sources; ++s) {
      const std::byte* source = sources[s] + at;
      for (size_t i = 0; i < kUnroll; ++i) {
        typename L::Accumulator other;
        L::Load(source + i * L::kBytes, other);
        Combine<kReduction>(block[i], other);
      }
    }
    for (size_t d = 0; d < num_destinations; ++d) {
      std::byte* destination = destinations[d] + at;
      for (size_t i = 0; i < kUnroll; ++i) L::Store(block[i], destination + i * L::kBytes);
    }
    if (tile == nullptr) continue;
    for (size_t i = 0; i < kUnroll; ++i) L::Store(block[i], tile + (at - begin) + i * L::kBytes);
  }
  while (at < end) {
    const size_t rest = end - at < L::kBytes ? end - at : L::kBytes;
    std::byte padded[L::kBytes] = {};
    typename L::Accumulator sum, other;
    __builtin_memcpy(padded, sources[0] + at, rest);
    L::Load(padded, sum);
    for (size_t s = 1; s < num_sources; ++s) {
      __builtin_memcpy(padded, sources[s] + at, rest);
      L::Load(padded, other);
      Combine<kReduction>(sum, other);
    }
    L::Store(sum, padded);
    for (size_t d = 0; d < num_destinations; ++d) __builtin_memcpy(destinations[d] + at, padded, rest);
    at += rest;
  }
}

template <typename L, Reduction kReduction>
void Reduce(const std::byte* const* sources, size_t num_sources, std::byte* const* destinations,
            size_t num_destinations, size_t num_cached, size_t bytes) {
  bool aligned = true;
  for (size_t d = num_cached; d < num_destinations; ++d) {
    aligned = aligned && reinterpret_cast<uintptr_t>(destinations[d]) % kVectorBytes == 0;
  }
  size_t at = 0;
  if (aligned && num_cached < num_destinations) {
    alignas(kVectorBytes) std::byte tile[kTileBytes];
    for (; at + kTileBytes <= bytes; at += kTileBytes) {
      ReduceRange<L, kReduction>(sources, num_sources, destinations, num_cached, tile, at, at + kTileBytes);
      for (size_t d = num_cached; d < num_destinations; ++d) StoreStreaming(tile, destinations[d] + at);
    }
    FenceStreaming();
  }
  ReduceRange<L, kReduction>(sources, num_sources, destinations, num_destinations, nullptr, at, bytes);
}

template <typename L>
ReduceFn Pick(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return Reduce<L, Reduction::kSum>;
    case Reduction::kMax:
      return Reduce<L, Reduction::kMax>;
    case Reduction::kMin:
      return Reduce<L, Reduction::kMin>;
  }
  return nullptr;
}

}  // namespace

ReduceFn Find(DType dtype, Reduction reduction) {
  const bool sum = reduction == Reduction::kSum;
  switch (dtype) {
    // Signed sums wrap, so they run on unsigned lanes.
    case DType::kS8:
      return sum ? Pick<Lane<uint8_t>>(reduction) : Pick<Lane<int8_t>>(reduction);
    case DType::kS16:
      return sum ? Pick<Lane<uint16_t>>(reduction) : Pick<Lane<int16_t>>(reduction);
    case DType::kS32:
      return sum ? Pick<Lane<uint32_t>>(reduction) : Pick<Lane<int32_t>>(reduction);
    case DType::kS64:
      return sum ? Pick<Lane<uint64_t>>(reduction) : Pick<Lane<int64_t>>(reduction);
    case DType::kU8:
      return Pick<Lane<uint8_t>>(reduction);
    case DType::kU16:
      return Pick<Lane<uint16_t>>(reduction);
    case DType::kU32:
      return Pick<Lane<uint32_t>>(reduction);
    case DType::kU64:
      return Pick<Lane<uint64_t>>(reduction);
    case DType::kF16:
      return Pick<Float16Lane>(reduction);
    case DType::kBF16:
      return Pick<BFloat16Lane>(reduction);
    case DType::kF32:
      return Pick<Lane<float>>(reduction);
    case DType::kF64:
      return Pick<Lane<double>>(reduction);
    // Complex numbers have no order; their sum is the sum of their parts.
    case DType::kC64:
      return sum ? Pick<Lane<float>>(reduction) : nullptr;
    case DType::kC128:
      return sum ? Pick<Lane<double>>(reduction) : nullptr;
  }
  return nullptr;
}

}  // namespace jaxcomm::JAXCOMM_ISA
