// Tests the host side of the fused executor on several devices, and the protocol on real threads. fake/ stands in for
// CUDA.
#include "cc/gpu/executor/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/gpu/executor/device.h"
#include "cc/gpu/executor/reach.h"
#include "cc/kernels/reduce.h"
#include "cc/program/testing/by_hand.h"

namespace jaxcomm::fused {
namespace {

using Devices = std::vector<int>;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The operands of a device's ranks, in the order of the ranks.
struct Operands {
  Operands(int device, uint32_t first_rank) : first_rank(first_rank) {
    const OnDevice on(device);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ~Operands() { cudaStreamDestroy(stream); }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  const uint32_t first_rank;
  std::vector<float> data;
  cudaStream_t stream = nullptr;
};

class Job {
 public:
  static constexpr int64_t kElements = 1003;

  explicit Job(const std::vector<int>& devices) : size_(static_cast<uint32_t>(devices.size())) {
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (rank == 0 || devices[rank] != devices[rank - 1]) operands_.emplace_back(devices[rank], rank);
      operands_.back().data.resize(operands_.back().data.size() + kElements);
    }
    ranks_ = Ranks::Make({"psum", "data", "direct", kElements * 4}, DirectByHand(size_, size_), devices, stats_);
  }

  Ranks& ranks() { return *ranks_.value(); }
  const Status& made() const { return ranks_.status(); }
  const CallSiteStats& stats() const { return stats_; }

  double deadline = 60.0;  // seconds; applies to later launches

  // Launches the ranks of one device. `index` is the device's position in `operands_`.
  Status Launch(size_t index) {
    Operands& its = operands_[index];
    return ranks().Run(
        its.first_rank,
        {reinterpret_cast<std::byte*>(its.data.data()), kElements * 4, nullptr, DType::kF32, Reduction::kSum, deadline},
        its.stream);
  }

  // Launches all devices except the one at index `late`, calls ready(), and then launches the device at index `late`.
  template <typename Ready>
  void LaunchAll(size_t late, Ready ready) {
    for (size_t index = 0; index < operands_.size(); ++index) {
      if (index == late) continue;
      EXPECT_TRUE(Launch(index).ok());
    }
    ready();
    if (late < operands_.size()) Launch(late);
  }

  // Makes a call on all devices and checks the sums.
  void CallAll(uint64_t seed) {
    for (Operands& operands : operands_) {
      for (size_t i = 0; i < operands.data.size(); ++i) operands.data[i] = Value(seed, operands.first_rank, i);
    }
    LaunchAll(SIZE_MAX, [] {});
    ::fake::TheMachine().Wait();
    for (const Operands& operands : operands_) {
      for (size_t i = 0; i < operands.data.size(); ++i) {
        float sum = 0;
        for (uint32_t rank = 0; rank < size_; ++rank) sum += Value(seed, rank, i % kElements);
        ASSERT_EQ(operands.data[i], sum) << "rank " << operands.first_rank << ", element " << i << ", call " << seed;
      }
    }
  }

  // Expects NaN in all data, because NaN cannot be mistaken for a sum.
  void ExpectNoSums() {
    for (const Operands& its : operands_) {
      EXPECT_TRUE(std::all_of(its.data.begin(), its.data.end(), [](float x) { return std::isnan(x); }));
    }
  }

 private:
  // The i-th element of the operands of a device whose first rank is `rank`.
  static float Value(uint64_t seed, uint32_t rank, size_t i) {
    return static_cast<float>(seed + (rank + i / kElements) * 7 + i % kElements % 13);
  }

  const uint32_t size_;
  std::deque<Operands> operands_;  // by device
  CallSiteStats stats_;
  Result<std::shared_ptr<Ranks>> ranks_ = Status();
};

TEST(RanksTest, SumsOnOneDeviceOnSeveralAndOnBoth) {
  for (const Devices& devices : {Devices{0, 0, 0}, Devices{0, 1, 2, 3}, Devices{2, 1, 3}, Devices{0, 0, 1, 1, 3}}) {
    fake::Machine machine(4);
    for (int device = 0; device < 4; ++device) machine.processors[device] = 8 + device;
    Job job(devices);
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    const uint64_t calls = devices[0] == 2 ? kKeptCalls + 3 : 10;
    for (uint64_t call = 1; call <= calls; ++call) job.CallAll(call);
    EXPECT_TRUE(job.ranks().Check().ok());
    EXPECT_EQ(machine.blocks.load() == 6, devices[0] == devices[2]);  // 3 ranks with 2 blocks each fit on 7 processors
  }
}

TEST(RanksTest, LetsEveryDeviceReachEveryOtherAndFreesAll) {
  fake::Machine machine(3);
  {
    const OnDevice on(2);
    Job job({0, 1, 2});
    Job again({0, 1, 2});  // peer access is already enabled
    EXPECT_TRUE(again.made().ok()) << again.made().message();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(machine.connected.size(), 6u);
    int device = 0;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 2);  // the current device is unchanged
  }
  EXPECT_EQ(machine.memory.size(), 0u);
}

TEST(RanksTest, RefusesWhatCannotRun) {
  fake::Machine machine(3);
  machine.separate = {{1, 2}};
  CallSiteStats stats;
  const auto make = [&](uint32_t ranks, const Devices& devices) {
    return Ranks::Make({"psum", "data", "", 4}, DirectByHand(ranks, ranks), devices, stats).status().message();
  };
  EXPECT_TRUE(Contains(make(40, Devices(40)), "40 ranks; a fused kernel allows 32"));
  EXPECT_TRUE(Contains(make(3, {0, 1}), "2 devices for a program of 3 ranks"));
  EXPECT_TRUE(Contains(make(3, {0, 1, 0}), "ranks of one device must be consecutive"));
  EXPECT_TRUE(Contains(make(3, {0, 0, 0}), "fewer processors than ranks"));  // each device has two processors
  EXPECT_TRUE(Contains(make(2, {0, 5}), "GPU 5: no such device"));
  EXPECT_TRUE(Contains(make(3, {0, 1, 2}),
                       "psum over 'data': GPU 1 cannot reach the memory of GPU 2: invalid value.\n  Cure: "));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(machine.memory.size(), 0u);
}

TEST(RanksTest, ARankThatMissesTheDeadlineIsNamedOnceAndTheNextCallWorks) {
  fake::Machine machine(3);
  Job job({0, 1, 2});
  job.CallAll(1);
  job.deadline = 0.3;
  Status failed;
  job.LaunchAll(/*late=*/1, [&] {
    machine.Wait();  // the other ranks give up
    failed = job.ranks().Check();
  });
  const char* const error =
      "DeadlineError: psum #2 over 'data' (3.918 KiB, plan direct): rank 1 of 3 has not arrived after ";
  EXPECT_TRUE(Contains(failed.message(), error) && Contains(failed.message(), "; 0,2 wait.")) << failed.message();
  machine.Wait();
  job.ExpectNoSums();
  EXPECT_TRUE(job.ranks().Check().ok());  // the failure was returned once, although two ranks gave up
  EXPECT_TRUE(Contains(job.stats().Json(), "\"failed\":1")) << job.stats().Json();
  job.deadline = 60.0;
  job.CallAll(3);
  EXPECT_TRUE(job.ranks().Check().ok());
}

TEST(RanksTest, WhatAFailedCallLeavesIsOfEveryTypeTheLargestOrNaN) {
  EXPECT_EQ(NoSum(DType::kS8), 0x7fu);
  for (const DType dtype : {DType::kS32, DType::kF32, DType::kC64}) EXPECT_EQ(NoSum(dtype), 0x7fffffffu);
  for (const DType dtype : {DType::kS64, DType::kC128}) EXPECT_EQ(NoSum(dtype), 0x7fffffffffffffffu);
  EXPECT_EQ(NoSum(DType::kF16), 0x7fffu);
  EXPECT_EQ(NoSum(DType::kU16), UINT64_MAX);
}

// Runs the kernel's own source, and compares the results with those of the CPU's kernels.
TEST(RanksTest, EveryTypeAndReductionHasTheCpusBits) {
  fake::Machine machine(2);
  constexpr size_t kRanks = 3, kBytes = 2000;  // not a multiple of 64, the size of a cache line
  for (int type = 0; type <= static_cast<int>(DType::kC128); ++type) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
      const auto dtype = static_cast<DType>(type);
      const ReduceFn reduce = plain::Find(dtype, reduction);
      if (reduce == nullptr) continue;
      alignas(16) std::byte data[kRanks][kBytes];
      const size_t width = dtype == DType::kC64 || dtype == DType::kC128 ? ByteWidth(dtype) / 2 : ByteWidth(dtype);
      std::mt19937 random(5);
      for (size_t i = 0; i < kRanks * kBytes; ++i) {
        const unsigned mask = i % width == width - 1 ? 0xbf : 0xff;  // excludes NaN
        data[i / kBytes][i % kBytes] = static_cast<std::byte>(random() & mask);
      }
      std::vector<std::byte> expected(kBytes);
      const std::byte* const from[] = {data[0], data[1], data[2]};
      std::byte* const to = expected.data();
      reduce(from, kRanks, &to, 1, 1, kBytes);
      CallSiteStats stats;
      const auto ranks = Ranks::Make({"psum", "data", "", kBytes}, DirectByHand(kRanks, 2), {0, 0, 1}, stats);
      cudaStream_t streams[2];
      for (int device : {0, 1}) {
        const OnDevice on(device);
        cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking);
        const Ranks::Call call{data[2 * device], kBytes, nullptr, dtype, reduction, /*deadline=*/60};
        EXPECT_TRUE(ranks.value()->Run(2 * device, call, streams[device]).ok());
      }
      for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
      for (const auto& each : data) {
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), each)) << type << ", " << static_cast<int>(reduction);
      }
    }
  }
}

TEST(ReachTest, MemoryOfCuMemCreateIsAskedForEachDevice) {
  fake::Machine machine(3);
  std::byte operand[8];
  machine.access = {0, 1, 2};
  EXPECT_TRUE(CheckReachable(operand, sizeof(operand), {0, 1, 2}).ok());
  EXPECT_EQ(MemoryKind(operand, 0), "cuMemCreate");
  machine.access = {0, 1};
  EXPECT_TRUE(CheckReachable(operand, sizeof(operand), {0, 1}).ok());
  EXPECT_TRUE(Contains(CheckReachable(operand, sizeof(operand), {0, 1, 2}).message(),
                       "GPU 2 may not touch this operand, which lies in memory of cuMemCreate.\n  Cure: "));
  machine.granted = reinterpret_cast<uint64_t>(operand);  // the operand's last byte is in another mapping
  EXPECT_TRUE(Contains(CheckReachable(operand, sizeof(operand), {0, 1}).message(), "GPU 1 may not touch"));
  EXPECT_TRUE(CheckReachable(operand, 0, {0, 1}).ok());
}

TEST(ReachTest, MemoryOfCudaMallocIsReachedAndThatOfPoolsIsNot) {
  fake::Machine machine(2);
  std::byte operand[8];
  EXPECT_TRUE(Contains(CheckReachable(operand, sizeof(operand), {0, 1}).message(),
                       "other GPUs cannot reach memory of this allocator.\n  Cure: run without"));
  EXPECT_EQ(MemoryKind(operand, 0), "neither cuMemCreate's nor cudaMalloc's");
  machine.is_of_malloc = true;
  EXPECT_TRUE(CheckReachable(operand, sizeof(operand), {0, 1}).ok());
  EXPECT_EQ(MemoryKind(operand, 0), "cudaMalloc");
}

TEST(RanksTest, ClocksOfDevicesThatDisagreeTellWhoWasLate) {
  fake::Machine machine(3);
  machine.clocks[0] = 3'000'000'000;
  machine.clocks[2] = -5'000'000'000'000;
  Job job({0, 1, 2});
  for (int call = 0; call < 2; ++call) {
    job.LaunchAll(/*late=*/2, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
    machine.Wait();
  }
  ASSERT_TRUE(job.ranks().RecordCalls().ok());
  ASSERT_TRUE(job.ranks().RecordCalls().ok());  // there is no new call
  const std::string json = job.stats().Json();
  EXPECT_TRUE(Contains(json, "\"calls\":2,\"failed\":0") && Contains(json, "\"late\":[0,0,2]")) << json;
  const size_t at = json.find("\"arrivals\":[[");
  ASSERT_NE(at, std::string::npos);
  double arrivals[3];
  ASSERT_EQ(std::sscanf(json.c_str() + at, "\"arrivals\":[[%lf,%lf,%lf]", &arrivals[0], &arrivals[1], &arrivals[2]), 3);
  EXPECT_TRUE(arrivals[2] > 0.1 && arrivals[2] < 10) << arrivals[2];  // excludes the difference between device clocks
}

}  // namespace
}  // namespace jaxcomm::fused
