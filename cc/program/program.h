// The program of one collective: a list of ops on chunks of the ranks' buffers.
//
//   Result<Program> program = Program::Decode(words, num_words);   // refuses malformed words
//   for (const Op& op : program.value().ops()) ...
//
// An op reads one chunk of some ranks, combines these ranks' elements in the order given, and stores the result to some
// ranks. An op may start when every rank that the op touches has arrived and the ops that it waits for are done. In the
// list, an op comes after all ops that it waits for. A Program is immutable and may be shared between threads.
//
// The encoding has little-endian uint32 words. It begins with the magic number "JCPG", the version 1, and the numbers
// of ranks, chunks and ops. Then each op has its rank, its chunk, and the lengths of its lists of reads, writes and
// waits, followed by the lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

struct Op {
  uint32_t rank;  // the rank that executes the op, if each rank is a process
  uint32_t chunk;
  std::vector<uint32_t> reads;
  std::vector<uint32_t> writes;      // ranks that are also in `reads` come first
  uint32_t num_in_place;             // the number of `writes` that are also in `reads`
  std::vector<uint32_t> touches;     // the ranks of reads and writes, each rank once, ascending
  std::vector<uint32_t> successors;  // ops that wait for this op
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
