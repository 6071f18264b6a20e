// The sends, receives and sums of one rank of a collective, by round, for ranks that cannot read each other's memory.
//
//   Result<Messages> messages = Messages::Decode(words, num_words);   // refuses malformed words
//   for (const Round& round : messages.value().rounds()) ...
//   std::vector<uint32_t> words = Messages::Encode(ranks, rank, chunks, slots, rounds);
//
// In a round, the rank sends all messages at once, then computes the sums in order. Two ranks list the messages between
// them in the same order. Immutable; may be shared between threads.
//
// The encoding has little-endian uint32 words. It begins with the magic number "JCMG", the version 1, the number of
// ranks, the rank, and the numbers of chunks, slots and rounds. Then each round has the lengths of its lists of sends,
// receives and sums, followed by the lists. A place is 0 for the rank's own chunk, or else a scratch slot's number plus
// one.
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

// The rank's own bytes of the chunk become the sum of the bytes at these places.
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
  // Returns whether the rank receives the whole buffers of all other ranks, and adds all buffers in rank order.
  bool IsFlatSum() const;

 private:
  uint32_t ranks_ = 0;
  uint32_t rank_ = 0;
  uint32_t chunks_ = 0;
  uint32_t slots_ = 0;
  std::vector<Round> rounds_;
};

}  // namespace jaxcomm
