// The reductions, compiled once per instruction set. A .cc file defines JAXCOMM_ISA (a namespace) and
// JAXCOMM_VECTOR_BYTES, then includes this file once. Everything here except Find has internal linkage (see
// lanes_inl.h).

#include "cc/kernels/lanes_inl.h"
#include "cc/kernels/reduce.h"

namespace jaxcomm::JAXCOMM_ISA {
namespace {

template <Reduction kReduction, typename V>
inline __attribute__((always_inline)) void Combine(V& into, const V& other) {
  if constexpr (kReduction == Reduction::kSum) {
    into = into + other;
  } else if constexpr (kReduction == Reduction::kMax) {
    into = ((into > other) | (into != into)) ? into : other;
  } else if constexpr (kReduction == Reduction::kProduct) {
    into = into * other;
  } else {
    into = ((into < other) | (into != into)) ? into : other;
  }
}

// Loads pairs of adjacent bf16 values as 32-bit words. A shift turns a word's lower half into a float, and a mask turns
// its upper half into a float. BFloat16Lane instead widens each element, which needs a shuffle. Both lanes give the
// same bits.
struct BFloat16PairLane {
  struct Accumulator {
    F32 even, odd;
  };
  static constexpr size_t kBytes = kVectorBytes;
  static inline __attribute__((always_inline)) void Load(const std::byte* from, Accumulator& value) {
    U32 pairs;
    __builtin_memcpy(&pairs, from, sizeof(pairs));
    value.even = BitCast<F32>(pairs << 16);
    value.odd = BitCast<F32>(pairs & 0xffff0000);
  }
  static inline __attribute__((always_inline)) void Store(const Accumulator& value, std::byte* to) {
    const U32 pairs = (Rounded(value.even) >> 16) | (Rounded(value.odd) & 0xffff0000);
    __builtin_memcpy(to, &pairs, sizeof(pairs));
  }

 private:
  // Returns the rounded values in the upper halves of the words. The lower halves are meaningless.
  static inline __attribute__((always_inline)) U32 Rounded(const F32& value) {
    const U32 bits = BitCast<U32>(value);
    const U32 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded;
  }
};

template <Reduction kReduction>
inline __attribute__((always_inline)) void Combine(BFloat16PairLane::Accumulator& into,
                                                   const BFloat16PairLane::Accumulator& other) {
  Combine<kReduction>(into.even, other.even);
  Combine<kReduction>(into.odd, other.odd);
}

// Only products need a complex lane, because a complex product mixes the real and the imaginary parts.
template <typename T>
struct ComplexVector {
  Vector<T> parts;  // real and imaginary parts alternate
};
template <typename T>
struct ComplexLane {
  using Accumulator = ComplexVector<T>;
  static constexpr size_t kBytes = kVectorBytes;
  static inline __attribute__((always_inline)) void Load(const std::byte* from, Accumulator& value) {
    __builtin_memcpy(&value.parts, from, kBytes);
  }
  static inline __attribute__((always_inline)) void Store(const Accumulator& value, std::byte* to) {
    __builtin_memcpy(to, &value.parts, kBytes);
  }
};

template <Reduction kReduction, typename T>
inline __attribute__((always_inline)) void Combine(ComplexVector<T>& into, const ComplexVector<T>& other) {
  static_assert(kReduction == Reduction::kProduct);
  Vector<T> real, imaginary, swapped, signs;
  for (size_t i = 0; i < kVectorBytes / sizeof(T); i += 2) {
    real[i] = real[i + 1] = into.parts[i];
    imaginary[i] = imaginary[i + 1] = into.parts[i + 1];
    swapped[i] = other.parts[i + 1];
    swapped[i + 1] = other.parts[i];
    signs[i] = -1;
    signs[i + 1] = 1;
  }
  into.parts = real * other.parts + imaginary * swapped * signs;
}

// Results that bypass the caches are first collected in a tile. A tile is large enough for long runs of stores to each
// destination, and small enough for the first-level cache.
constexpr size_t kTileBytes = 4096;

// Stores a tile. Bypasses the caches if the architecture can.
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

// Makes the streaming stores visible to other threads before the reduction is reported as done. Locks do not order
// streaming stores.
inline void FenceStreaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Combines bytes [begin, end) of all sources, and stores the result to the destinations. Unless `tile` is null, also
// stores the result at the start of `tile`. A block of kUnroll vectors stays in registers, and is rounded once for all
// destinations.
template <typename L, Reduction kReduction>
void ReduceRange(const std::byte* const* sources, size_t num_sources, std::byte* const* destinations,
                 size_t num_destinations, std::byte* tile, size_t begin, size_t end) {
  constexpr size_t kUnroll = 4 * sizeof(F32) / sizeof(typename L::Accumulator);
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
    std::byte stored[kBlock];
    for (size_t i = 0; i < kUnroll; ++i) L::Store(block[i], stored + i * L::kBytes);
    for (size_t d = 0; d < num_destinations; ++d) __builtin_memcpy(destinations[d] + at, stored, kBlock);
    if (tile != nullptr) __builtin_memcpy(tile + (at - begin), stored, kBlock);
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
    case Reduction::kProduct:
      return Reduce<L, Reduction::kProduct>;
  }
  return nullptr;
}

}  // namespace

ReduceFn Find(DType dtype, Reduction reduction) {
  const bool sum = reduction == Reduction::kSum, product = reduction == Reduction::kProduct;
  const bool wraps = sum || product;
  switch (dtype) {
    // Signed sums and products must wrap, so they use unsigned lanes.
    case DType::kS8:
      return wraps ? Pick<Lane<uint8_t>>(reduction) : Pick<Lane<int8_t>>(reduction);
    case DType::kS16:
      return wraps ? Pick<Lane<uint16_t>>(reduction) : Pick<Lane<int16_t>>(reduction);
    case DType::kS32:
      return wraps ? Pick<Lane<uint32_t>>(reduction) : Pick<Lane<int32_t>>(reduction);
    case DType::kS64:
      return wraps ? Pick<Lane<uint64_t>>(reduction) : Pick<Lane<int64_t>>(reduction);
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
      return Pick<BFloat16PairLane>(reduction);
    case DType::kF32:
      return Pick<Lane<float>>(reduction);
    case DType::kF64:
      return Pick<Lane<double>>(reduction);
    // Complex numbers have no order, so they have no max and no min. A complex sum is the sum of the parts.
    case DType::kC64:
      return sum ? Pick<Lane<float>>(reduction) : product ? Reduce<ComplexLane<float>, Reduction::kProduct> : nullptr;
    case DType::kC128:
      return sum ? Pick<Lane<double>>(reduction) : product ? Reduce<ComplexLane<double>, Reduction::kProduct> : nullptr;
  }
  return nullptr;
}

}  // namespace jaxcomm::JAXCOMM_ISA
