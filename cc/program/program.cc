#include "cc/program/program.h"

#include <algorithm>
#include <string>
#include <utility>

namespace jaxcomm {
namespace {

// Reads words one after the other; remembers the first mistake and where it was.
class Reader {
 public:
  Reader(const uint32_t* words, size_t num_words) : words_(words), num_words_(num_words) {}

  uint32_t Next(const char* what, uint32_t limit) {
    if (!status_.ok()) return 0;
    if (at_ >= num_words_) {
      status_ = InvalidArgument("program ends at word " + std::to_string(num_words_) + ", inside " + what);
      return 0;
    }
    const uint32_t word = words_[at_++];
    if (word >= limit) {
      Fail(std::string(what) + " is " + std::to_string(word) + ", must be below " + std::to_string(limit));
      return 0;
    }
    return word;
  }

  // A list of distinct values below `limit`.
  std::vector<uint32_t> List(const char* what, uint32_t size, uint32_t limit) {
    std::vector<uint32_t> list;
    if (!status_.ok()) return list;
    if (size > left()) {
      Fail(std::string(what) + " has " + std::to_string(size) + " entries, but only " + std::to_string(left()) +
           " words follow");
      return list;
    }
    list.reserve(size);
    for (uint32_t i = 0; i < size; ++i) list.push_back(Next(what, limit));
    std::vector<uint32_t> sorted = list;
    std::sort(sorted.begin(), sorted.end());
    if (status_.ok() && std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      Fail(std::string(what) + " names an entry twice");
    }
    return list;
  }

  void Fail(const std::string& message) {
    if (status_.ok())
      status_ = InvalidArgument("program word " + std::to_string(at_ == 0 ? 0 : at_ - 1) + ": " + message);
  }

  size_t left() const { return num_words_ - at_; }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  const uint32_t* words_;
  size_t num_words_;
  size_t at_ = 0;
  Status status_;
};

constexpr uint32_t kWordsPerOp = 5;

}  // namespace

Result<Program> Program::Decode(const uint32_t* words, size_t num_words) {
  Reader reader(words, num_words);
  if (reader.Next("magic", UINT32_MAX) != kMagic) reader.Fail("this is not a jaxcomm program");
  const uint32_t version = reader.Next("version", UINT32_MAX);
  if (reader.ok() && version != kVersion) {
    reader.Fail("version " + std::to_string(version) + " is not known; this build reads version 1");
  }
  Program program;
  program.ranks_ = reader.Next("ranks", kMaxRanks + 1);
  program.chunks_ = reader.Next("chunks", kMaxChunks + 1);
  const uint32_t num_ops = reader.Next("number of ops", UINT32_MAX);
  if (reader.ok() && (program.ranks_ == 0 || program.chunks_ == 0)) reader.Fail("no rank or no chunk");
  if (reader.ok() && num_ops > reader.left() / kWordsPerOp) reader.Fail("more ops than the program has words for");
  if (!reader.ok()) return reader.status();

  program.ops_.reserve(num_ops);
  program.ops_of_.resize(program.ranks_);
  for (uint32_t index = 0; index < num_ops && reader.ok(); ++index) {
    Op op;
    op.rank = reader.Next("rank", program.ranks_);
    op.chunk = reader.Next("chunk", program.chunks_);
    const uint32_t num_reads = reader.Next("number of reads", program.ranks_ + 1);
    const uint32_t num_writes = reader.Next("number of writes", program.ranks_ + 1);
    op.num_waits = reader.Next("number of waits", num_ops);
    op.reads = reader.List("reads", num_reads, program.ranks_);
    op.writes = reader.List("writes", num_writes, program.ranks_);
    // An op waits for earlier ops only, so there is no cycle.
    const std::vector<uint32_t> waits = reader.List("waits", op.num_waits, index);
    if (reader.ok() && (op.reads.empty() || op.writes.empty())) reader.Fail("an op must read and write");
    if (!reader.ok()) break;
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
  if (reader.ok() && reader.left() != 0) reader.Fail(std::to_string(reader.left()) + " words follow the last op");
  if (!reader.ok()) return reader.status();
  return program;
}

}  // namespace jaxcomm
