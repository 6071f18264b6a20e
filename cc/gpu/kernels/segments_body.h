// What the threads that move and scale segments do. Sizes are in bytes; a unit is one tile of one segment, and kLanes
// threads do it together.
#pragma once

#include "cc/gpu/kernels/elements.h"

namespace jaxcomm::cuda {

constexpr size_t kLanes = 32;
constexpr size_t kTilePacks = 8;  // of one thread, under way at once
constexpr size_t kTileBytes = kLanes * kTilePacks * kPackBytes;

// An array that is cut into segments, of which the last may be shorter.
struct Segments {
  size_t bytes, segment;

  JAXCOMM_PORTABLE size_t Count() const { return (bytes + segment - 1) / segment; }
  JAXCOMM_PORTABLE size_t TilesOfOne() const { return (segment + kTileBytes - 1) / kTileBytes; }
  // The bytes of segment s; 0 where there is none.
  JAXCOMM_PORTABLE size_t Length(int64_t s) const {
    if (s < 0 || static_cast<size_t>(s) >= Count()) return 0;
    const size_t rest = bytes - static_cast<size_t>(s) * segment;
    return rest < segment ? rest : segment;
  }
};

// Stores the bytes [begin, end) of `to`, a tile at most: those of `from` below `known`, zeros from there on.
template <bool kAligned>
JAXCOMM_PORTABLE void CopyTile(const std::byte* from, size_t known, std::byte* to, size_t begin, size_t end,
                               size_t lane) {
  if constexpr (kAligned) {
    constexpr size_t kStep = kLanes * kPackBytes;
    const size_t whole = begin + (end - begin) / kPackBytes * kPackBytes, first = begin + lane * kPackBytes;
    Pack<std::byte> packs[kTilePacks];
    JAXCOMM_UNROLL for (size_t p = 0; p < kTilePacks; ++p) {
      const size_t at = first + p * kStep;
      packs[p] = at + kPackBytes <= known && at < whole ? LoadPack(from + at) : Pack<std::byte>{};
    }
    JAXCOMM_UNROLL for (size_t p = 0; p < kTilePacks; ++p) {
      const size_t at = first + p * kStep;
      const bool at_edge = at < known && known < at + kPackBytes;
      if (at < whole && !at_edge) StorePack(packs[p], to + at);
    }
    // The pack that is known in part, and what is no whole pack.
    const size_t edge = known / kPackBytes * kPackBytes;
    if (edge < known && begin <= edge && edge < whole && lane < kPackBytes) {
      to[edge + lane] = edge + lane < known ? from[edge + lane] : std::byte{0};
    }
    begin = whole;
  }
  for (size_t at = begin + lane; at < end; at += kLanes) to[at] = at < known ? from[at] : std::byte{0};
}

// Unit u of packing: the chosen segments one after the other. An index that does not exist gives zeros.
template <bool kAligned>
JAXCOMM_PORTABLE void PackTile(const std::byte* gradients, Segments segments, const int32_t* indices, std::byte* packed,
                               size_t unit, size_t lane) {
  const size_t i = unit / segments.TilesOfOne(), begin = unit % segments.TilesOfOne() * kTileBytes;
  const size_t end = begin + kTileBytes < segments.segment ? begin + kTileBytes : segments.segment;
  const size_t known = segments.Length(indices[i]);
  const std::byte* const from = known == 0 ? gradients : gradients + static_cast<size_t>(indices[i]) * segments.segment;
  CopyTile<kAligned>(from, known, packed + i * segments.segment, begin, end, lane);
}

// Where s stands in ascending indices; `count` where it does not.
JAXCOMM_PORTABLE size_t Find(const int32_t* indices, size_t count, size_t s) {
  size_t low = 0, high = count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (indices[middle] < static_cast<int64_t>(s)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && indices[low] == static_cast<int64_t>(s) ? low : count;
}

// Unit u of unpacking: every segment of the result, from where it was packed, or zeros.
template <bool kAligned>
JAXCOMM_PORTABLE void UnpackTile(const std::byte* packed, const int32_t* indices, size_t count, Segments segments,
                                 std::byte* gradients, size_t unit, size_t lane) {
  const size_t s = unit / segments.TilesOfOne(), begin = unit % segments.TilesOfOne() * kTileBytes;
  const size_t length = segments.Length(static_cast<int64_t>(s)), position = Find(indices, count, s);
  if (begin >= length) return;
  const size_t end = begin + kTileBytes < length ? begin + kTileBytes : length;
  const std::byte* const from = position == count ? packed : packed + position * segments.segment;
  CopyTile<kAligned>(from, position == count ? 0 : length, gradients + s * segments.segment, begin, end, lane);
}

// Unit u of scaling. A factor of 0 stores zeros without reading; a factor of 1 copies, in place it does nothing.
template <typename E, bool kAligned>
JAXCOMM_PORTABLE void ScaleTile(const typename E::Stored* gradients, Segments segments, const float* factors,
                                typename E::Stored* result, size_t unit, size_t lane) {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  constexpr size_t kElements = Pack<Stored>::kElements;
  const size_t s = unit / segments.TilesOfOne(), begin = unit % segments.TilesOfOne() * kTileBytes;
  const size_t length = segments.Length(static_cast<int64_t>(s));
  const float factor = factors[s];
  if (begin >= length || (factor == 1 && gradients == result)) return;
  const size_t end = begin + kTileBytes < length ? begin + kTileBytes : length;
  const Stored* const from = gradients + s * (segments.segment / sizeof(Stored));
  Stored* const to = result + s * (segments.segment / sizeof(Stored));
  if (factor == 0 || factor == 1) {
    CopyTile<kAligned>(reinterpret_cast<const std::byte*>(from), factor == 0 ? 0 : length,
                       reinterpret_cast<std::byte*>(to), begin, end, lane);
    return;
  }
  const Wide times = static_cast<Wide>(factor);
  size_t at = begin / sizeof(Stored);
  const size_t last = end / sizeof(Stored);
  if constexpr (kAligned) {
    const size_t whole = at + (last - at) / kElements * kElements, first = at + lane * kElements;
    Pack<Stored> packs[kTilePacks];
    JAXCOMM_UNROLL for (size_t p = 0; p < kTilePacks; ++p) {
      if (first + p * kLanes * kElements < whole) packs[p] = LoadPack(from + first + p * kLanes * kElements);
    }
    JAXCOMM_UNROLL for (size_t p = 0; p < kTilePacks; ++p) {
      if (first + p * kLanes * kElements >= whole) break;
      JAXCOMM_UNROLL for (size_t i = 0; i < kElements; ++i) {
        packs[p].elements[i] = E::Round(E::Widen(packs[p].elements[i]) * times);
      }
      StorePack(packs[p], to + first + p * kLanes * kElements);
    }
    at = whole;
  }
  for (at += lane; at < last; at += kLanes) to[at] = E::Round(E::Widen(from[at]) * times);
}

}  // namespace jaxcomm::cuda
