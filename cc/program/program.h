// The program of the ranks of one collective: a list of ops on chunks of their buffers.
//
//   Result<Program> program = Program::Decode(words, num_words);   // refuses anything malformed
//   for (const Op& op : program.value().ops()) ...
//
// An op reads one chunk from some ranks, combines it element by element in the order given, and stores the result to
// some ranks. It may start when every rank it touches has arrived and the ops it waits for are done; the list is in an
// order that satisfies all waits. A Program is immutable and may be shared between threads.
//
// Encoding (little-endian uint32 words): magic "JCPG", version 1, ranks, chunks, number of ops; then per op: rank,
// chunk, number of reads, of writes, of waits, and the three lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

struct Op {
  uint32_t rank;  // the rank that executes it, where ranks are processes of their own
  uint32_t chunk;
  std::vector<uint32_t> reads;
  std::vector<uint32_t> writes;      // those that are reads, too, come first
  uint32_t num_in_place;             // the number of these
  std::vector<uint32_t> touches;     // reads and writes together, each rank once, ascending
  std::vector<uint32_t> successors;  // ops that wait for this one
  uint32_t num_waits;
};

class Program {
 public:
  static constexpr uint32_t kMagic = 0x4750434A;
  static constexpr uint32_t kVersion = 1;
  static constexpr uint32_t kMaxRanks = 1 << 12;
  static constexpr uint32_t kMaxChunks = 1 << 24;

  static Result<Program> Decode(const uint32_t* words, size_t num_words);

  uint32_t ranks() const { return ranks_; }
  uint32_t chunks() const { return chunks_; }
  const std::vector<Op>& ops() const { return ops_; }
  // The ops that touch a rank's memory.
  const std::vector<uint32_t>& ops_of(uint32_t rank) const { return ops_of_[rank]; }

 private:
  uint32_t ranks_ = 0;
  uint32_t chunks_ = 0;
  std::vector<Op> ops_;
  std::vector<std::vector<uint32_t>> ops_of_;
};

}  // namespace jaxcomm
