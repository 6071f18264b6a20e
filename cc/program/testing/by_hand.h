// Programs that a test writes down op by op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cc/program/program.h"
#include "gtest/gtest.h"

namespace jaxcomm {

struct PlainOp {
  uint32_t rank, chunk;
  std::vector<uint32_t> reads, writes, waits;
};

inline std::shared_ptr<const Program> ByHand(uint32_t ranks, uint32_t chunks, const std::vector<PlainOp>& ops) {
  std::vector<uint32_t> words{Program::kMagic, Program::kVersion, ranks, chunks, static_cast<uint32_t>(ops.size())};
  for (const PlainOp& op : ops) {
    for (const size_t word : {size_t{op.rank}, size_t{op.chunk}, op.reads.size(), op.writes.size(), op.waits.size()}) {
      words.push_back(static_cast<uint32_t>(word));
    }
    for (const auto* list : {&op.reads, &op.writes, &op.waits}) words.insert(words.end(), list->begin(), list->end());
  }
  Result<Program> program = Program::Decode(words.data(), words.size());
  EXPECT_TRUE(program.ok()) << program.status().message();
  return std::make_shared<const Program>(std::move(program.value()));
}

inline std::vector<uint32_t> Everybody(uint32_t ranks) {
  std::vector<uint32_t> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Rank c adds chunk c of all ranks and stores the sum to all ranks.
inline std::shared_ptr<const Program> DirectByHand(uint32_t ranks, uint32_t chunks) {
  std::vector<PlainOp> ops;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk)
    ops.push_back({chunk, chunk, Everybody(ranks), Everybody(ranks), {}});
  return ByHand(ranks, chunks, ops);
}

}  // namespace jaxcomm
