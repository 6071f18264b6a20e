// The importance kernels, compiled once per instruction set. A .cc file defines JAXCOMM_ISA (a namespace) and
// JAXCOMM_VECTOR_BYTES, then includes this file once. Everything here except the two Find functions has internal
// linkage (see lanes_inl.h).

#include "cc/kernels/importance.h"
#include "cc/kernels/lanes_inl.h"

namespace jaxcomm::JAXCOMM_ISA {
namespace {

// Element i of a segment is added to sum number i mod kSums. Every processor then adds the sums in the same order.
constexpr size_t kSums = 16;

// T is the type of the elements in lane L's accumulator. Word is an unsigned integer type of the same width.
template <typename L, typename T, typename Word>
struct Magnitude {
  using V = typename L::Accumulator;
  static constexpr size_t kWidth = sizeof(V) / sizeof(T);
  static constexpr size_t kElementBytes = L::kBytes / kWidth;
  static constexpr size_t kVectors = kSums / kWidth;
  static constexpr Word kWithoutSign = ~Word{0} >> 1;

  static inline __attribute__((always_inline)) V Load(const std::byte* from) {
    V value;
    L::Load(from, value);
    return BitCast<V>(BitCast<Vector<Word>>(value) & kWithoutSign);
  }

  // Returns the mean of `elements` magnitudes.
  static float Mean(const std::byte* from, size_t elements) {
    V sums[kVectors] = {};
    size_t at = 0;
    for (; at + kSums <= elements; at += kSums) {
      for (size_t i = 0; i < kVectors; ++i) sums[i] = sums[i] + Load(from + (at + i * kWidth) * kElementBytes);
    }
    if (at < elements) {
      std::byte padded[kSums * kElementBytes] = {};
      __builtin_memcpy(padded, from + at * kElementBytes, (elements - at) * kElementBytes);
      for (size_t i = 0; i < kVectors; ++i) sums[i] = sums[i] + Load(padded + i * L::kBytes);
    }
    T parts[kSums];
    __builtin_memcpy(parts, sums, sizeof(parts));
    for (size_t half = kSums / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    }
    return static_cast<float>(parts[0] / static_cast<T>(elements));
  }
};

template <typename L, typename T, typename Word>
void Importance(const std::byte* gradients, size_t elements, size_t segment, float* means) {
  using M = Magnitude<L, T, Word>;
  for (size_t begin = 0, s = 0; begin < elements; begin += segment, ++s) {
    const size_t length = elements - begin < segment ? elements - begin : segment;
    means[s] = M::Mean(gradients + begin * M::kElementBytes, length);
  }
}

template <typename L, typename T>
void Scale(std::byte* values, size_t elements, float factor) {
  constexpr size_t kElementBytes = L::kBytes / (sizeof(typename L::Accumulator) / sizeof(T));
  const size_t bytes = elements * kElementBytes;
  typename L::Accumulator value;
  size_t at = 0;
  for (; at + L::kBytes <= bytes; at += L::kBytes) {
    L::Load(values + at, value);
    L::Store(value * static_cast<T>(factor), values + at);
  }
  if (at == bytes) return;
  std::byte padded[L::kBytes] = {};
  __builtin_memcpy(padded, values + at, bytes - at);
  L::Load(padded, value);
  L::Store(value * static_cast<T>(factor), padded);
  __builtin_memcpy(values + at, padded, bytes - at);
}

}  // namespace

ImportanceFn FindImportance(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return Importance<Float16Lane, float, uint32_t>;
    case DType::kBF16:
      return Importance<BFloat16Lane, float, uint32_t>;
    case DType::kF32:
      return Importance<Lane<float>, float, uint32_t>;
    case DType::kF64:
      return Importance<Lane<double>, double, uint64_t>;
    default:
      return nullptr;
  }
}

ScaleFn FindScale(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return Scale<Float16Lane, float>;
    case DType::kBF16:
      return Scale<BFloat16Lane, float>;
    case DType::kF32:
      return Scale<Lane<float>, float>;
    case DType::kF64:
      return Scale<Lane<double>, double>;
    default:
      return nullptr;
  }
}

}  // namespace jaxcomm::JAXCOMM_ISA
