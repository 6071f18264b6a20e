#include "cc/program/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/program/word_reader.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kWordsPerOp = 5;

}  // namespace

Result<Program> Program::Decode(const uint32_t* words, size_t num_words) {
  if (num_words == 0 || words[0] != kMagic) return InvalidArgument("program word 0: this is not a jaxcomm program");
  WordReader in("program", words, num_words);
  in.Next("the magic number", uint64_t{kMagic} + 1);
  in.Next("the version", kVersion + 1, kVersion);
  Program program;
  program.ranks_ = in.Next("the number of ranks", kMaxRanks + 1, 1);
  program.chunks_ = in.Next("the number of chunks", kMaxChunks + 1, 1);
  const uint32_t num_ops = in.Length("the number of ops", kWordsPerOp);
  // Reads a list of distinct values below `limit`.
  const auto list = [&in](const char* what, uint32_t size, uint32_t limit) {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < size && in.ok(); ++i) found.push_back(in.Next(what, limit));
    std::vector<uint32_t> sorted = found;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      in.Fail(std::string(what) + " stands twice in its list");
    }
    return found;
  };
  program.ops_of_.resize(program.ranks_);
  for (uint32_t index = 0; index < num_ops && in.ok(); ++index) {
    Op op;
    op.rank = in.Next("a rank", program.ranks_);
    op.chunk = in.Next("a chunk", program.chunks_);
    const uint32_t num_reads = in.Next("the number of reads", uint64_t{program.ranks_} + 1, 1);
    const uint32_t num_writes = in.Next("the number of writes", uint64_t{program.ranks_} + 1, 1);
    op.num_waits = in.Next("the number of waits", uint64_t{index} + 1);
    op.reads = list("a rank to read", num_reads, program.ranks_);
    op.writes = list("a rank to write", num_writes, program.ranks_);
    // An op may wait only for earlier ops, so there is no cycle.
    const std::vector<uint32_t> waits = list("an op to wait for", op.num_waits, index);
    if (!in.ok()) break;
    const auto fresh = std::stable_partition(op.writes.begin(), op.writes.end(), [&op](uint32_t rank) {
      return std::find(op.reads.begin(), op.reads.end(), rank) != op.reads.end();
    });
    op.num_in_place = static_cast<uint32_t>(fresh - op.writes.begin());
    op.touches = op.reads;
    op.touches.insert(op.touches.end(), op.writes.begin(), op.writes.end());
    std::sort(op.touches.begin(), op.touches.end());
    op.touches.erase(std::unique(op.touches.begin(), op.touches.end()), op.touches.end());
    for (uint32_t rank : op.touches) program.ops_of_[rank].push_back(index);
    for (uint32_t wait : waits) program.ops_[wait].successors.push_back(index);
    program.ops_.push_back(std::move(op));
  }
  in.ExpectEnd("the last op");
  if (!in.ok()) return in.status();
  return program;
}

}  // namespace jaxcomm
