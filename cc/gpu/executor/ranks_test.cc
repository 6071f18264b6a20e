// The host side of the fused executor over several devices, and the protocol on real threads; see fake/.
#include "cc/gpu/executor/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/gpu/executor/fake/job.h"
#include "cc/gpu/executor/no_sum.h"
#include "cc/gpu/executor/one_process.h"

namespace jaxcomm::fused {
namespace {

using Devices = std::vector<int>;

struct JobHere : Job {
  explicit JobHere(const Devices& devices) : JobHere(Slots::Find(devices, /*process=*/0).value()) {}
  explicit JobHere(const Slots& slots)
      : Job(slots, [&slots](const AllOperands&) { return std::make_unique<OneProcess>(slots); }) {}
};

TEST(RanksTest, SumsOnOneDeviceOnSeveralAndOnBoth) {
  for (const Devices& devices : {Devices{0, 0, 0}, Devices{0, 1, 2, 3}, Devices{2, 1}, Devices{0, 0, 1, 1, 3}}) {
    fake::Machine machine(4);
    for (int device = 0; device < 4; ++device) machine.SetProcessors(device, 4 + device);
    JobHere job(devices);
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    const uint64_t calls = devices.size() == 2 ? kKeptCalls + 3 : 10;
    for (uint64_t call = 1; call <= calls; ++call) {
      job.Fill(call);
      job.LaunchAll();
      job.ExpectSums(call);
    }
    EXPECT_TRUE(job.ranks().Check().ok());
  }
}

TEST(RanksTest, LetsEveryDeviceReachEveryOtherAndFreesAll) {
  fake::Machine machine(3);
  {
    const OnDevice on(2);
    JobHere job({0, 1, 2});
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    JobHere again({0, 1, 2});  // they reach each other already
    EXPECT_TRUE(again.made().ok()) << again.made().message();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) EXPECT_TRUE(machine.connected(from, to)) << from << to;
    }
    int device = 0;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 2);  // as it was found
  }
  EXPECT_EQ(machine.allocated(), 0u);
}

TEST(RanksTest, NamesTheDeviceThatCannotReachAnother) {
  fake::Machine machine(3);
  machine.Separate(1, 2);
  const JobHere job({0, 1, 2});
  EXPECT_EQ(job.made().code(), Code::kUnimplemented);
  EXPECT_TRUE(Contains(job.made().message(), "psum over 'data': GPU 1 cannot reach the memory of GPU 2.\n  Cure: "))
      << job.made().message();
  EXPECT_EQ(machine.allocated(), 0u);
}

TEST(RanksTest, RefusesWhatCannotRun) {
  fake::Machine machine(2);
  Stats stats;
  const auto make = [&](uint32_t ranks, const Devices& devices) {
    const Result<Slots> slots = Slots::Find(devices, /*process=*/0);
    if (!slots.ok()) return slots.status().message();
    return Ranks::Make({"psum", "data", "", 4}, DirectByHand(ranks, ranks), slots.value(),
                       std::make_unique<OneProcess>(slots.value()), stats)
        .status()
        .message();
  };
  EXPECT_TRUE(Contains(make(40, Devices(40)), "40 ranks; the fused executor takes 32"));
  EXPECT_TRUE(Contains(make(3, {0, 1}), "2 devices for a program of 3 ranks"));
  EXPECT_TRUE(Contains(make(3, {0, 1, 0}), "ranks of one device must be neighbours"));
  EXPECT_TRUE(Contains(make(3, {0, 0, 0}), "fewer processors than ranks"));  // of two
  EXPECT_TRUE(Contains(make(2, {0, 5}), "GPU 5: no such device"));
  EXPECT_TRUE(Contains(make(2, {1 << 16, 2 << 16 | 1}), "process 0 has none of its ranks"));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(machine.allocated(), 0u);
}

TEST(RanksTest, ARankThatMissesTheDeadlineIsNamedOnceAndTheNextCallWorks) {
  fake::Machine machine(3);
  JobHere job({0, 1, 2});
  job.Fill(1);
  job.LaunchAll();
  job.ExpectSums(1);
  job.deadline = 0.3;
  Status failed;
  job.LaunchAll(/*late=*/1, [&] {
    machine.Wait();  // the others give up
    failed = job.ranks().Check();
  });
  EXPECT_EQ(failed.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(
      Contains(failed.message(),
               "DeadlineError: psum #2 over 'data' (3.918 KiB, plan direct): rank 1 of 3 has not arrived after "))
      << failed.message();
  EXPECT_TRUE(Contains(failed.message(), "; 0,2 wait.")) << failed.message();
  machine.Wait();
  job.ExpectNoSums();
  EXPECT_TRUE(job.ranks().Check().ok());  // the failure was returned, however many gave up in it
  EXPECT_TRUE(Contains(job.stats().Json(), "\"failed\":1")) << job.stats().Json();
  job.deadline = 60.0;
  job.Fill(3);
  job.LaunchAll();
  job.ExpectSums(3);
  EXPECT_TRUE(job.ranks().Check().ok());
}

TEST(RanksTest, AFailedCallHandsOutNoSumAndTheNextOneWorks) {
  fake::Machine machine(2);
  JobHere job({0, 1});
  job.deadline = 0.3;
  ASSERT_TRUE(job.Launch(0).ok());
  machine.Wait();                   // rank 0 gives up alone
  EXPECT_TRUE(job.Launch(1).ok());  // it launches all the same, since all must count alike
  EXPECT_EQ(job.ranks().Check().code(), Code::kDeadlineExceeded);
  job.ExpectNoSums();
  job.deadline = 60.0;
  job.Fill(2);
  job.LaunchAll();
  job.ExpectSums(2);
}

TEST(RanksTest, WhatAFailedCallLeavesIsOfEveryTypeTheLargestOrNaN) {
  for (const auto& [dtype, bits] : {std::pair(DType::kS8, uint64_t{0x7f}),
                                    {DType::kS32, 0x7fffffff},
                                    {DType::kS64, 0x7fffffffffffffff},
                                    {DType::kF16, 0x7fff},
                                    {DType::kF32, 0x7fffffff},
                                    {DType::kC64, 0x7fffffff},
                                    {DType::kU16, UINT64_MAX}}) {
    EXPECT_EQ(NoSum(dtype), bits);
  }
}

TEST(RanksTest, SparesSomeOfTheProcessors) {
  fake::Machine machine(1);
  machine.SetProcessors(0, 24);
  JobHere job({0, 0, 0});
  job.Fill(1);
  job.LaunchAll();
  job.ExpectSums(1);
  EXPECT_EQ(machine.blocks.load(), 21u);  // three of the 24 are left to others
}

TEST(RanksTest, ClocksOfDevicesThatDisagreeTellWhoWasLate) {
  fake::Machine machine(3);
  machine.SetClock(0, 3'000'000'000);
  machine.SetClock(2, -5'000'000'000'000);
  JobHere job({0, 1, 2});
  for (int call = 0; call < 2; ++call) {
    job.LaunchAll(/*late=*/2, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
    machine.Wait();
  }
  ASSERT_TRUE(job.ranks().RecordCalls().ok());
  ASSERT_TRUE(job.ranks().RecordCalls().ok());  // nothing new
  const std::string json = job.stats().Json();
  EXPECT_TRUE(Contains(json, "\"calls\":2,\"failed\":0")) << json;
  EXPECT_TRUE(Contains(json, "\"late\":[0,0,2]")) << json;
  const size_t at = json.find("\"arrivals\":[[");
  ASSERT_NE(at, std::string::npos);
  double arrivals[3];
  ASSERT_EQ(std::sscanf(json.c_str() + at, "\"arrivals\":[[%lf,%lf,%lf]", &arrivals[0], &arrivals[1], &arrivals[2]), 3);
  EXPECT_GT(arrivals[2], 0.1);
  EXPECT_LT(arrivals[2], 10.0);  // not the seconds by which the clocks differ
}

}  // namespace
}  // namespace jaxcomm::fused
