// Ranks with their data and a stream for each device, which make calls as XLA's threads do; for tests.
//
//   fake::Machine machine(4);
//   Job job(slots, std::make_unique<OneProcess>(slots));
//   job.Fill(1);
//   job.LaunchAll();
//   job.ExpectSums(1);
//
// Those of one process: each process of several has a job of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cc/gpu/executor/fake/shared_memory.h"
#include "cc/gpu/executor/on_device.h"
#include "cc/gpu/executor/ranks.h"
#include "cc/program/testing/by_hand.h"

namespace jaxcomm::fused {

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The operands of a slot's ranks, one after the other, somewhere in memory that others may open: it is not freed
// before the process ends, as XLA's is not.
class Operands {
 public:
  static constexpr int64_t kElements = 1003;

  explicit Operands(const Slot& slot) : slot_(slot) {
    const OnDevice on(slot.device);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    memory_ = fake::SharedMemory::Allocate(bytes());
  }
  ~Operands() { cudaStreamDestroy(stream_); }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  std::byte* base() const { return memory_; }
  size_t bytes() const { return offset() + size_t{slot_.num_ranks} * kElements * sizeof(float); }
  float* data() const { return reinterpret_cast<float*>(base() + offset()); }
  cudaStream_t stream() const { return stream_; }

 private:
  // Not the same on any two.
  size_t offset() const { return 256 * (1 + slot_.first_rank); }

  const Slot slot_;
  std::byte* memory_;
  cudaStream_t stream_ = nullptr;
};

class Job {
 public:
  static constexpr int64_t kElements = Operands::kElements;
  using AllOperands = std::map<size_t, Operands>;  // by slot

  // `connect(operands)` makes the peer memory.
  template <typename Connect>
  Job(const Slots& slots, Connect connect) : slots_(slots) {
    for (const size_t slot : slots_.here) operands_.try_emplace(slot, slots_.all[slot]);
    ranks_ = Ranks::Make({"psum", "data", "direct", kElements * 4}, DirectByHand(Size(), Size()), slots_,
                         connect(operands_), stats_);
  }

  uint32_t Size() const { return static_cast<uint32_t>(slots_.of_rank.size()); }
  Ranks& ranks() { return *ranks_.value(); }
  const Status& made() const { return ranks_.status(); }
  const Stats& stats() const { return stats_; }
  const AllOperands& operands() const { return operands_; }
  void End() { ranks_ = Status(); }

  double deadline = 60.0;  // of the calls from now on

  void Fill(uint64_t seed) {
    for (const auto& [slot, operands] : operands_) {
      for (uint32_t rank = 0; rank < slots_.all[slot].num_ranks; ++rank) {
        for (int64_t i = 0; i < kElements; ++i) {
          operands.data()[rank * kElements + i] = Value(seed, slots_.all[slot].first_rank + rank, i);
        }
      }
    }
  }

  // The ranks of one slot.
  Status Launch(size_t slot) {
    const Operands& its = operands_.at(slot);
    return ranks().Run(
        slots_.all[slot].first_rank,
        {reinterpret_cast<std::byte*>(its.data()), kElements * 4, nullptr, DType::kF32, Reduction::kSum, deadline},
        its.stream());
  }

  // What becomes of it, whoever is told first.
  Status LaunchAndWait(size_t slot) {
    const Status status = Launch(slot);
    fake::TheMachine().Wait();
    return status.ok() ? ranks().Check() : status;
  }

  // All slots of this process; `late` when `ready` returns.
  template <typename Ready>
  void LaunchAll(size_t late, Ready ready) {
    for (const size_t slot : slots_.here) {
      if (slot == late) continue;
      EXPECT_TRUE(Launch(slot).ok());
    }
    ready();
    if (operands_.count(late) > 0) Launch(late);
  }
  void LaunchAll() {
    LaunchAll(SIZE_MAX, [] {});
  }

  void ExpectSums(uint64_t seed) {
    fake::TheMachine().Wait();
    for (const auto& [slot, operands] : operands_) {
      for (int64_t i = 0; i < kElements * slots_.all[slot].num_ranks; ++i) {
        float sum = 0;
        for (uint32_t rank = 0; rank < Size(); ++rank) sum += Value(seed, rank, i % kElements);
        ASSERT_EQ(operands.data()[i], sum) << "slot " << slot << ", element " << i << ", call " << seed;
      }
    }
  }

  // Nothing that was left can be taken for one.
  void ExpectNoSums() {
    fake::TheMachine().Wait();
    for (const auto& [slot, operands] : operands_) {
      for (int64_t i = 0; i < kElements * slots_.all[slot].num_ranks; ++i) {
        ASSERT_TRUE(std::isnan(operands.data()[i])) << "slot " << slot << ", element " << i;
      }
    }
  }

 private:
  static float Value(uint64_t seed, uint32_t rank, int64_t i) { return static_cast<float>(seed + rank * 7 + i % 13); }

  const Slots slots_;
  AllOperands operands_;
  Stats stats_;
  Result<std::shared_ptr<Ranks>> ranks_ = Status();
};

}  // namespace jaxcomm::fused
