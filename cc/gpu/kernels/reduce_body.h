// What one thread of the reduction does.
#pragma once

#include "cc/gpu/kernels/elements.h"

namespace jaxcomm::cuda {

// Travels by value, as a kernel's argument.
constexpr size_t kMaxSources = 64;
struct Sources {
  const void* buffers[kMaxSources];
  size_t count;
};

template <typename E, Reduction kReduction>
struct ReduceBody {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  static constexpr size_t kElements = Pack<Stored>::kElements;
  // Packs of one source that are under way at once, so that the memory's latency is hidden; a byte takes a register.
  static constexpr size_t kPacks = sizeof(Stored) == 1 ? 1 : 2;

  JAXCOMM_PORTABLE static const Stored* From(const Sources& sources, size_t i) {
    return static_cast<const Stored*>(sources.buffers[i]);
  }

  // One element.
  JAXCOMM_PORTABLE static void ReduceElement(const Sources& sources, Stored* to, size_t at) {
    Wide value = E::Widen(From(sources, 0)[at]);
    for (size_t s = 1; s < sources.count; ++s) value = Combine<kReduction>(value, E::Widen(From(sources, s)[at]));
    to[at] = E::Round(value);
  }

  // This thread's share of the elements. Sources are combined in their order, whichever thread does it.
  template <bool kAligned>
  JAXCOMM_PORTABLE static void Run(const Sources& sources, Stored* to, size_t elements, GridThread grid) {
    size_t done = 0;
    if constexpr (kAligned) {
      const size_t packs = elements / kElements;
      for (size_t first = grid.thread; first < packs; first += grid.threads * kPacks) {
        ReducePacks(sources, to, first, packs, grid.threads);
      }
      done = packs * kElements;
    }
    for (size_t at = done + grid.thread; at < elements; at += grid.threads) ReduceElement(sources, to, at);
  }

 private:
  // The packs first, first + step, … below the end.
  JAXCOMM_PORTABLE static void ReducePacks(const Sources& sources, Stored* to, size_t first, size_t end, size_t step) {
    Wide values[kPacks][kElements];
    JAXCOMM_UNROLL for (size_t p = 0; p < kPacks; ++p) {
      if (first + p * step >= end) break;
      const Pack<Stored> pack = LoadPack(From(sources, 0) + (first + p * step) * kElements);
      JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) values[p][i] = E::Widen(pack.elements[i]);
    }
    JAXCOMM_UNROLL_4 for (size_t s = 1; s < sources.count; ++s) {
      JAXCOMM_UNROLL for (size_t p = 0; p < kPacks; ++p) {
        if (first + p * step >= end) break;
        const Pack<Stored> pack = LoadPack(From(sources, s) + (first + p * step) * kElements);
        JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) {
          values[p][i] = Combine<kReduction>(values[p][i], E::Widen(pack.elements[i]));
        }
      }
    }
    JAXCOMM_UNROLL for (size_t p = 0; p < kPacks; ++p) {
      if (first + p * step >= end) break;
      Pack<Stored> pack;
      JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) pack.elements[i] = E::Round(values[p][i]);
      StorePack(pack, to + (first + p * step) * kElements);
    }
  }
};

}  // namespace jaxcomm::cuda
