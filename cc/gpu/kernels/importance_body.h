// One thread's work in the importance kernel. Results equal cc/kernels/importance.h bit for bit.
#pragma once

#include "cc/gpu/kernels/elements.h"
#include "cc/kernels/importance.h"

namespace jaxcomm::cuda {

// A flat gradient that is cut into segments. `elements` and `segment` are numbers of elements.
template <typename E>
struct Gradient {
  const typename E::Stored* values;
  size_t elements, segment;
};

template <typename E>
struct ImportanceBody {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  static constexpr size_t kElements = Pack<Stored>::kElements;
  // As on CPUs, element i of a segment is added to sum i mod kSums. Then the sums are added in a fixed order.
  static constexpr size_t kSums = 16;
  // The number of threads, called lanes, that share a segment. Each lane owns kElements of the kSums sums.
  static constexpr size_t kLanes = kSums / kElements;
  // The number of packs that a thread loads at once.
  static constexpr size_t kPacks = 8;
  static constexpr size_t kBlock = kPacks * kSums;

  JAXCOMM_PORTABLE static float Magnitude(float value) {
    return BitCast<float>(BitCast<uint32_t>(value) & 0x7fffffffu);
  }
  JAXCOMM_PORTABLE static double Magnitude(double value) {
    return BitCast<double>(BitCast<uint64_t>(value) & 0x7fffffffffffffffu);
  }

  // Adds this lane's elements of segment s to the lane's kElements sums. Then writes these kElements sums to the lane's
  // places in `sums`, which holds the segment's kSums sums.
  template <bool kAligned>
  JAXCOMM_PORTABLE static void Accumulate(const Gradient<E>& gradient, size_t s, size_t lane, Wide* sums) {
    const Stored* const from = gradient.values + s * gradient.segment;
    const size_t length = Length(gradient, s);
    Wide mine[kElements] = {};
    size_t at = 0;
    if constexpr (kAligned) {
      for (; at + kBlock <= length; at += kBlock) {
        Pack<Stored> packs[kPacks];
        JAXCOMM_UNROLL for (size_t p = 0; p < kPacks; ++p) {
          packs[p] = LoadPack(from + at + p * kSums + lane * kElements);
        }
        JAXCOMM_UNROLL for (size_t p = 0; p < kPacks; ++p) {
          JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) mine[i] += Magnitude(E::Widen(packs[p].elements[i]));
        }
      }
    }
    for (; at < length; at += kSums) {
      JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) {
        const size_t index = at + lane * kElements + i;
        if (index < length) mine[i] += Magnitude(E::Widen(from[index]));
      }
    }
    JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) sums[lane * kElements + i] = mine[i];
  }

  // Returns the mean magnitude of segment s, given its kSums sums in `sums`. Overwrites `sums`.
  JAXCOMM_PORTABLE static float Mean(const Gradient<E>& gradient, size_t s, Wide* sums) {
    for (size_t half = kSums / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return static_cast<float>(sums[0] / static_cast<Wide>(Length(gradient, s)));
  }

 private:
  JAXCOMM_PORTABLE static size_t Length(const Gradient<E>& gradient, size_t s) {
    const size_t rest = gradient.elements - s * gradient.segment;
    return rest < gradient.segment ? rest : gradient.segment;
  }
};

}  // namespace jaxcomm::cuda
