// The sends, receives and sums of one rank of a collective, by round, for ranks that cannot read each other's memory.
//
//   Result<Messages> messages = Messages::Decode(words, num_words);   // refuses anything malformed
//   for (const Round& round : messages.value().rounds()) ...
//   std::vector<uint32_t> words = Messages::Encode(ranks, rank, chunks, slots, rounds);
//
// A round's messages go at once; then its sums are done, in their order. Between two ranks, sends and receives are
// listed in the same order. Immutable; may be shared between threads.
//
// Encoding (little-endian uint32 words): magic "JCMG", version 1, ranks, rank, chunks, slots, rounds; then per round
// the numbers of sends, receives and sums, and the three lists. A place is 0 for the rank's own chunk, else a scratch
// slot plus one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

struct SendChunk {
  uint32_t peer;
  uint32_t chunk;
};

struct ReceiveChunk {
  uint32_t peer;
  uint32_t chunk;
  uint32_t place;
};

// The rank's own chunk becomes the sum of the places.
struct Sum {
  uint32_t chunk;
  std::vector<uint32_t> places;
};

struct Round {
  std::vector<SendChunk> sends;
  std::vector<ReceiveChunk> receives;
  std::vector<Sum> sums;
};

class Messages {
 public:
  static constexpr uint32_t kMagic = 0x474D434A;
  static constexpr uint32_t kVersion = 1;
  static constexpr uint32_t kOwn = 0;  // the place of a chunk in the rank's own buffer

  static Result<Messages> Decode(const uint32_t* words, size_t num_words);
  static std::vector<uint32_t> Encode(uint32_t ranks, uint32_t rank, uint32_t chunks, uint32_t slots,
                                      const std::vector<Round>& rounds);

  uint32_t ranks() const { return ranks_; }
  uint32_t rank() const { return rank_; }
  uint32_t chunks() const { return chunks_; }
  uint32_t slots() const { return slots_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  // Whether each rank receives the whole buffers of all others, and adds in the order of the ranks.
  bool IsFlatSum() const;

 private:
  uint32_t ranks_ = 0;
  uint32_t rank_ = 0;
  uint32_t chunks_ = 0;
  uint32_t slots_ = 0;
  std::vector<Round> rounds_;
};

}  // namespace jaxcomm
