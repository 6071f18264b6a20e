#include "cc/executor/device_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <complex>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes Pack(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> Unpack(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

enum class Wire { kSimulated, kShm };

// Processes with one or two devices each.
class Job {
 public:
  Job(uint32_t devices, uint32_t devices_of_each, Wire wire = Wire::kSimulated)
      : each_(devices_of_each), network_(devices / devices_of_each, /*seed=*/1) {
    std::vector<Transport::Events*> events;
    for (uint32_t process = 0; process < network_.processes(); ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      events.push_back(&executors_[process]->messages());
      network_.Connect(process, events[process]);
    }
    if (wire == Wire::kShm) shm_ = ConnectShm(events, ShmTransport::ArenaBytes(network_.processes()));
    for (uint32_t process = 0; process < network_.processes(); ++process) {
      Transport* transport = &network_.transport(process);
      if (wire == Wire::kShm) transport = shm_[process].get();
      executors_[process]->messages().Connect(transport);
    }
  }
  ~Job() {
    for (const std::unique_ptr<ShmTransport>& transport : shm_) transport->Leave();
    network_.Stop();
    executors_.clear();  // destroyed before the transports
  }

  Executor& executor(uint32_t process) { return *executors_[process]; }
  MessageRegistry& lists() { return lists_; }
  uint32_t processes() const { return network_.processes(); }
  void Kill(uint32_t process) { network_.Kill(process); }

  // Returns the communicators by rank. The communicators of one process share a DeviceGroup.
  std::vector<std::unique_ptr<DeviceCommunicator>> Make(const std::vector<uint32_t>& devices, uint32_t instance = 0,
                                                        const DeviceCommunicator::ChooseList& choose = Choose,
                                                        const std::atomic<uint64_t>* changes = nullptr) {
    std::vector<MessageRank> members;
    for (const uint32_t device : devices) members.push_back({device / each_, device});
    std::vector<std::shared_ptr<DeviceGroup>> groups;
    for (uint32_t process = 0; process < network_.processes(); ++process) {
      groups.push_back(std::make_shared<DeviceGroup>("devices", members, instance));
    }
    std::vector<std::unique_ptr<DeviceCommunicator>> made;
    for (uint32_t rank = 0; rank < devices.size(); ++rank) {
      made.push_back(std::make_unique<DeviceCommunicator>(executor(members[rank].process), lists_, choose,
                                                          groups[members[rank].process], rank, changes));
    }
    return made;
  }

 private:
  static DeviceCommunicator::ChosenList Choose(Kind kind, const DeviceGroup& group, int64_t bytes) {
    const std::string ranks = "/" + std::to_string(group.devices().size());
    if (kind == Kind::kReduceScatter) return {"reduce_scatter/direct" + ranks, "direct"};
    if (kind == Kind::kAllGather) return {"all_gather/ring" + ranks, "ring"};
    return {(bytes <= 1024 ? "all_reduce/flat" : "all_reduce/direct") + ranks, "direct"};
  }

  const uint32_t each_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<ShmTransport>> shm_;
  std::vector<std::unique_ptr<Executor>> executors_;
  MessageRegistry lists_;
};

// Runs every rank on its own thread, as XLA does. Returns the ranks' statuses.
std::vector<Status> OnThreads(size_t ranks, const std::function<Status(size_t)>& run) {
  std::vector<Status> ends(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { ends[rank] = run(rank); });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

void ExpectOk(const std::vector<Status>& ends) {
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.message();
}

// Parameters: the number of devices of each process, and how the processes are connected.
class DeviceCommunicatorTest : public testing::TestWithParam<std::tuple<uint32_t, Wire>> {
 protected:
  static Job MakeJob(uint32_t devices) { return Job(devices, std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(DeviceCommunicatorTest, ReducesApartFromItsOperandAndInPlace) {
  Job job = MakeJob(4);
  const auto ranks = job.Make({0, 1, 2, 3});
  for (const size_t elements : {1u, 100u, 5000u, 200000u}) {
    std::vector<Bytes> operands, results(4, Bytes(elements * sizeof(float)));
    for (size_t rank = 0; rank < 4; ++rank) {
      std::vector<float> values(elements);
      for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 7 + rank);
      operands.push_back(Pack(values));
    }
    const std::vector<Bytes> before = operands;
    ExpectOk(OnThreads(4, [&](size_t rank) {
      return ranks[rank]->AllReduce(operands[rank].data(), results[rank].data(), elements * sizeof(float), DType::kF32,
                                    Reduction::kSum);
    }));
    EXPECT_EQ(operands, before);
    std::vector<float> expected(elements);
    for (size_t i = 0; i < elements; ++i) expected[i] = static_cast<float>(4 * (i % 7) + 6);
    for (const Bytes& result : results) EXPECT_EQ(Unpack<float>(result), expected) << elements;
    ExpectOk(OnThreads(4, [&](size_t rank) {
      return ranks[rank]->AllReduce(operands[rank].data(), operands[rank].data(), elements * sizeof(float), DType::kF32,
                                    Reduction::kSum);
    }));
    EXPECT_EQ(operands, results);
  }
}

TEST_P(DeviceCommunicatorTest, MultipliesComplexNumbers) {
  Job job = MakeJob(2);
  const auto ranks = job.Make({0, 1});
  std::vector<Bytes> values = {Pack<std::complex<float>>({{1, 2}}), Pack<std::complex<float>>({{3, -1}})};
  std::vector<Bytes> results(2, Bytes(sizeof(std::complex<float>)));
  ExpectOk(OnThreads(2, [&](size_t rank) {
    return ranks[rank]->AllReduce(values[rank].data(), results[rank].data(), 8, DType::kC64, Reduction::kProduct);
  }));
  for (const Bytes& result : results) EXPECT_EQ(Unpack<std::complex<float>>(result)[0], std::complex<float>(5, 5));
}

TEST_P(DeviceCommunicatorTest, ScattersAndGathersInTheOrderOfItsRanks) {
  Job job = MakeJob(4);
  const auto ranks = job.Make({2, 0, 3, 1});
  std::vector<Bytes> slices(4, Bytes(3 * sizeof(int32_t))), wholes(4, Bytes(12 * sizeof(int32_t)));
  std::vector<int32_t> values(12);
  std::iota(values.begin(), values.end(), 0);
  const Bytes operand = Pack(values);
  ExpectOk(OnThreads(4, [&](size_t rank) {
    return ranks[rank]->ReduceScatter(operand.data(), slices[rank].data(), 12, DType::kS32, Reduction::kMax);
  }));
  ExpectOk(
      OnThreads(4, [&](size_t rank) { return ranks[rank]->AllGather(slices[rank].data(), wholes[rank].data(), 12); }));
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Unpack<int32_t>(slices[rank])[0], static_cast<int32_t>(3 * rank));
    EXPECT_EQ(Unpack<int32_t>(wholes[rank]), values);
  }
}

// Calls Receive, Send and Wait as XLA does for a permute.
TEST_P(DeviceCommunicatorTest, MovesMessagesBetweenItsRanks) {
  Job job = MakeJob(4);
  const auto ranks = job.Make({0, 1, 2, 3});
  for (const int64_t bytes : {0, 8, 100000, 3000000}) {
    std::vector<Bytes> sent, received(4, Bytes(static_cast<size_t>(bytes)));
    for (uint8_t rank = 0; rank < 4; ++rank) sent.emplace_back(static_cast<size_t>(bytes), std::byte{rank});
    for (int turn = 0; turn < 3; ++turn) {
      ExpectOk(OnThreads(4, [&](size_t rank) {
        const auto in =
            ranks[rank]->Receive(received[rank].data(), bytes, static_cast<uint32_t>((rank + 3) % 4), "shift");
        const auto out = ranks[rank]->Send(sent[rank].data(), bytes, static_cast<uint32_t>((rank + 1) % 4), "shift");
        const Status first = ranks[rank]->Wait(in), second = ranks[rank]->Wait(out);
        return first.ok() ? second : first;
      }));
    }
    for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(received[rank], sent[(rank + 3) % 4]) << bytes;
  }
}

// Calls Exchange as XLA does for an all-to-all.
TEST_P(DeviceCommunicatorTest, ExchangesWithEachOtherRankInTurn) {
  Job job = MakeJob(4);
  const auto ranks = job.Make({0, 1, 2, 3});
  for (const int64_t bytes : {8, 100000, 3000000}) {
    std::vector<std::vector<Bytes>> sent(4), received(4, std::vector<Bytes>(4, Bytes(static_cast<size_t>(bytes))));
    for (uint8_t rank = 0; rank < 4; ++rank) {
      for (uint8_t to = 0; to < 4; ++to) sent[rank].emplace_back(static_cast<size_t>(bytes), std::byte(16 * rank + to));
    }
    ExpectOk(OnThreads(4, [&](size_t rank) {
      for (uint32_t i = 1; i < 4; ++i) {
        const auto to = static_cast<uint32_t>((rank + i) % 4), from = static_cast<uint32_t>((rank + 4 - i) % 4);
        const Status end = ranks[rank]->Exchange(sent[rank][to].data(), to, received[rank][from].data(), from, bytes);
        if (!end.ok()) return end;
      }
      return Status();
    }));
    for (size_t rank = 0; rank < 4; ++rank) {
      for (size_t from = 0; from < 4; ++from) {
        if (from == rank) continue;
        EXPECT_EQ(received[rank][from], sent[from][rank]) << bytes;
      }
    }
  }
}

// Two ranks that send to each other exchange their bytes in one call, unless one of them waits before it sends.
TEST_P(DeviceCommunicatorTest, TwoRanksSendToEachOther) {
  Job job = MakeJob(4);
  const auto ranks = job.Make({0, 1, 2, 3});
  for (const int64_t bytes : {8, 100000, 3000000}) {
    for (const bool is_together : {true, false, true}) {
      std::vector<Bytes> sent, received(4, Bytes(static_cast<size_t>(bytes)));
      for (uint8_t rank = 0; rank < 4; ++rank) sent.emplace_back(static_cast<size_t>(bytes), std::byte{rank});
      ExpectOk(OnThreads(4, [&](size_t rank) {
        const auto peer = static_cast<uint32_t>((rank + 2) % 4);
        const bool waits = !is_together && rank >= 2;
        const auto in = ranks[rank]->Receive(received[rank].data(), bytes, peer, "swap");
        const Status early = waits ? ranks[rank]->Wait(in) : Status();
        const auto out = ranks[rank]->Send(sent[rank].data(), bytes, peer, "swap");
        const Status last = ranks[rank]->Wait(out), first = waits ? early : ranks[rank]->Wait(in);
        return first.ok() ? last : first;
      }));
      for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(received[rank], sent[(rank + 2) % 4]) << bytes;
    }
  }
}

// Returns the number of calls in process 0's statistics that are of this label, which is a part of a JSON record.
int CallsOf(Job& job, const std::string& label) {
  const std::string json = job.executor(0).stats().Json();
  const size_t at = json.find(label);
  if (at == std::string::npos) return 0;
  return std::stoi(json.substr(json.find("\"calls\":", at) + std::strlen("\"calls\":")));
}

int CallsUnder(Job& job, const std::string& plan) { return CallsOf(job, "\"plan\":\"" + plan + "\""); }

// Ranks that arrive too late for an exchange move their bytes in several calls, so not every all-to-all need be one
// call.
TEST(DeviceCommunicator, AnAllToAllOrASwapWithinAHostIsOneCall) {
  constexpr int kTimes = 50;
  Job job(4, 1, Wire::kShm);
  const auto all = job.Make({0, 1, 2, 3}), two = job.Make({1, 0});
  ExpectOk(OnThreads(4, [&](size_t rank) {
    for (int time = 0; time < kTimes; ++time) {
      std::vector<Bytes> in(4, Bytes(8)), out(4, Bytes(8, static_cast<std::byte>(rank)));
      for (uint32_t i = 1; i < 4; ++i) {
        const auto to = static_cast<uint32_t>((rank + i) % 4), from = static_cast<uint32_t>((rank + 4 - i) % 4);
        const Status end = all[rank]->Exchange(out[to].data(), to, in[from].data(), from, 8);
        if (!end.ok()) return end;
      }
      for (size_t from = 0; from < 4; ++from) {
        EXPECT_EQ(in[from], Bytes(8, from == rank ? std::byte() : static_cast<std::byte>(from)));
      }
    }
    return Status();
  }));
  EXPECT_GT(CallsOf(job, "\"name\":\"all-to-all\",\"axes\":\"devices\",\"plan\":\"none\",\"ranks\":4"), 0);
  ExpectOk(OnThreads(2, [&](size_t rank) {
    for (int time = 0; time < kTimes; ++time) {
      const Bytes out(8, static_cast<std::byte>(rank));
      Bytes in(8);
      const auto received = two[rank]->Receive(in.data(), 8, 1 - rank, "swap");
      two[rank]->Send(out.data(), 8, 1 - rank, "swap");
      const Status end = two[rank]->Wait(received);
      if (!end.ok()) return end;
      EXPECT_EQ(in, Bytes(8, static_cast<std::byte>(1 - rank)));
    }
    return Status();
  }));
  EXPECT_LT(CallsOf(job, "\"name\":\"swap\""), 2 * kTimes);
}

TEST(DeviceCommunicator, CallsRunTheListThatIsChosenAfterAChange) {
  Job job(2, 1);
  std::string list = "all_reduce/flat/2";
  std::atomic<uint64_t> changes{0};
  const auto choose = [&](Kind, const DeviceGroup&, int64_t) { return DeviceCommunicator::ChosenList{list, list}; };
  const auto ranks = job.Make({0, 1}, /*instance=*/0, choose, &changes);
  const auto sum = [&] {
    ExpectOk(OnThreads(2, [&](size_t rank) {
      Bytes operand = Pack<float>({1});
      return ranks[rank]->AllReduce(operand.data(), operand.data(), 4, DType::kF32, Reduction::kSum);
    }));
  };
  sum();
  sum();
  list = "all_reduce/direct/2";
  ++changes;
  sum();
  EXPECT_EQ(CallsUnder(job, "all_reduce/flat/2"), 2);
  EXPECT_EQ(CallsUnder(job, "all_reduce/direct/2"), 1);
}

TEST_P(DeviceCommunicatorTest, AutoFollowsThePlanThatTheRunSwitchesTo) {
  Job job = MakeJob(4);
  const auto choose = [](Kind, const DeviceGroup&, int64_t) {
    return DeviceCommunicator::ChosenList{"all_reduce/flat/4", std::string(kAuto)};
  };
  const auto ranks = job.Make({0, 1, 2, 3}, /*instance=*/0, choose);
  const auto sum = [&](bool in_place) {
    std::vector<Bytes> operands(4, Pack(std::vector<float>(500, 1))), results(4, Bytes(2000));
    ExpectOk(OnThreads(4, [&](size_t rank) {
      std::byte* const result = in_place ? operands[rank].data() : results[rank].data();
      return ranks[rank]->AllReduce(operands[rank].data(), result, 2000, DType::kF32, Reduction::kSum);
    }));
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(Unpack<float>(in_place ? operands[rank] : results[rank]), std::vector<float>(500, 4));
      EXPECT_EQ(Unpack<float>(operands[rank]), std::vector<float>(500, in_place ? 4 : 1));
    }
  };
  for (int call = 0; call < 4; ++call) sum(call % 2 == 0);
  const auto plan = std::make_shared<PlannedLists>(PlannedLists{"3f9a01c2", 4, {{0, "ring", {}}}});
  for (uint32_t rank = 0; rank < 4; ++rank) {
    plan->from[0].lists.push_back(job.lists().Find("all_reduce/ring/4", rank));
  }
  for (uint32_t process = 0; process < job.processes(); ++process) {
    ASSERT_TRUE(job.executor(process).messages().plans().Prepare(plan, {{ranks[0]->group().id(), /*launch=*/6}}));
    job.executor(process).messages().plans().Decide(/*commit=*/true);
  }
  for (int call = 4; call < 10; ++call) sum(call % 2 == 0);
  EXPECT_EQ(CallsUnder(job, "auto"), 6);
  EXPECT_EQ(CallsUnder(job, "3f9a01c2"), 4);
  const auto periods = job.executor(0).messages().plans().Periods();
  ASSERT_EQ(periods.size(), 1);
  EXPECT_EQ(periods.begin()->second.size(), 3);  // the periods between the four calls that follow the plan
}

TEST_P(DeviceCommunicatorTest, ACallWaitsUntilItsProcessKnowsThePlan) {
  Job job = MakeJob(4);
  const auto choose = [](Kind, const DeviceGroup&, int64_t) {
    return DeviceCommunicator::ChosenList{"all_reduce/flat/4", std::string(kAuto)};
  };
  const auto ranks = job.Make({0, 1, 2, 3}, /*instance=*/0, choose);
  ASSERT_TRUE(job.executor(0).messages().plans().Prepare(nullptr, {{ranks[0]->group().id(), /*launch=*/0}}));
  std::thread fails([&] {
    while (job.executor(0).messages().plans().Next().empty()) std::this_thread::yield();
    job.executor(0).messages().plans().Fail(Status(Code::kInternal, "the processes could not agree on a plan"));
  });
  std::vector<Bytes> operands(4, Bytes(8)), results(4, Bytes(8));
  for (const Status& end : OnThreads(4, [&](size_t rank) {
         return ranks[rank]->AllReduce(operands[rank].data(), results[rank].data(), 8, DType::kF32, Reduction::kSum);
       })) {
    EXPECT_NE(end.message().find("could not agree"), std::string::npos) << end.message();
  }
  fails.join();
}

INSTANTIATE_TEST_SUITE_P(DevicesOfAProcess, DeviceCommunicatorTest,
                         testing::Values(std::tuple(1u, Wire::kSimulated), std::tuple(2u, Wire::kSimulated),
                                         std::tuple(1u, Wire::kShm)));

TEST(DeviceCommunicator, SeveralDevicesOfTwoProcessesTransferAtOnce) {
  Job job(4, 2, Wire::kShm);
  const auto ranks = job.Make({0, 1, 2, 3});
  for (const int64_t bytes : {100, 1000000}) {
    for (uint8_t turn = 0; turn < 50; ++turn) {
      std::vector<Bytes> sent, received(4, Bytes(static_cast<size_t>(bytes)));
      for (uint8_t rank = 0; rank < 4; ++rank)
        sent.emplace_back(static_cast<size_t>(bytes), std::byte(4 * turn + rank));
      ExpectOk(OnThreads(4, [&](size_t rank) {
        const auto other = static_cast<uint32_t>((rank + 2) % 4);
        const auto in = ranks[rank]->Receive(received[rank].data(), bytes, other, "shift");
        const auto out = ranks[rank]->Send(sent[rank].data(), bytes, other, "shift");
        const Status first = ranks[rank]->Wait(in), second = ranks[rank]->Wait(out);
        return first.ok() ? second : first;
      }));
      for (size_t rank = 0; rank < 4; ++rank) ASSERT_EQ(received[rank], sent[(rank + 2) % 4]) << bytes;
    }
  }
}

TEST(DeviceGroup, ItsNameIsShortOfHoweverManyProcesses) {
  const auto name = [](uint32_t ranks, uint32_t step) {
    std::vector<MessageRank> devices;
    for (uint32_t rank = 0; rank < ranks; ++rank) devices.push_back({step * rank, rank});
    return DeviceGroup::NameOf(devices);
  };
  EXPECT_EQ(name(4, 1), "processes 0,1,2,3");
  EXPECT_EQ(name(128, 1), "processes 0-127");
  EXPECT_EQ(name(128, 2), "128 ranks, processes 0,2,4,...,254");
}

TEST(DeviceCommunicator, UnlikeCallsFailAtOnceAndNameBoth) {
  Job job(2, 1);
  const auto ranks = job.Make({0, 1});
  std::vector<Bytes> results(2, Bytes(64));
  const Bytes operand(64);
  const std::vector<Status> ends = OnThreads(2, [&](size_t rank) {
    return ranks[rank]->AllReduce(operand.data(), results[rank].data(), rank == 0 ? 64 : 32, DType::kF32,
                                  Reduction::kSum);
  });
  for (const Status& end : ends) {
    EXPECT_NE(end.message().find("MismatchError: all-reduce"), std::string::npos) << end.message();
    EXPECT_NE(end.message().find("f32[16]"), std::string::npos) << end.message();
    EXPECT_NE(end.message().find("f32[8]"), std::string::npos) << end.message();
  }
}

// The sender of a small transfer does not wait for its receiver.
TEST(DeviceCommunicator, ASmallTransferWithinAHostEndsBeforeItsReceiverArrives) {
  Job job(2, 1, Wire::kShm);
  const auto ranks = job.Make({0, 1});
  for (int64_t bytes : {int64_t{8}, int64_t{32} << 10}) {
    Bytes sent(static_cast<size_t>(bytes), std::byte{1}), received(sent.size());
    EXPECT_TRUE(ranks[0]->Wait(ranks[0]->Send(sent.data(), bytes, 1, "shift")).ok());
    std::fill(sent.begin(), sent.end(), std::byte{2});
    EXPECT_TRUE(ranks[1]->Wait(ranks[1]->Receive(received.data(), bytes, 0, "shift")).ok());
    EXPECT_EQ(received, Bytes(received.size(), std::byte{1}));
  }
  EXPECT_EQ(CallsOf(job, "\"name\":\"shift\""), 1);  // the call of the sender with the first size
  EXPECT_NE(job.executor(0).stats().Json().find("\"arrivals\":[],"), std::string::npos);
  EXPECT_EQ(job.executor(1).stats().Json().find("\"arrivals\":[],"), std::string::npos);
}

// The sender's part may be over before the receiver finds that the calls differ.
TEST(DeviceCommunicator, AReceiverOfAnotherTransferWithinAHostGetsTheErrorThatNamesBoth) {
  for (const int64_t bytes : {int64_t{1000}, int64_t{8} << 20}) {
    Job job(2, 1, Wire::kShm);
    const auto ranks = job.Make({0, 1});
    const std::string one = "u8[" + std::to_string(bytes) + "]", other = "u8[" + std::to_string(bytes + 1) + "]";
    const std::vector<Status> ends = OnThreads(2, [&](size_t rank) {
      Bytes memory(static_cast<size_t>(bytes + 1));
      return rank == 0 ? ranks[0]->Wait(ranks[0]->Send(memory.data(), bytes, 1, "shift"))
                       : ranks[1]->Wait(ranks[1]->Receive(memory.data(), bytes + 1, 0, "shift"));
    });
    EXPECT_EQ(ends[0].ok(), bytes == 1000);
    EXPECT_NE(ends[1].message().find("MismatchError: shift"), std::string::npos) << ends[1].message();
    EXPECT_NE(ends[1].message().find(one), std::string::npos) << ends[1].message();
    EXPECT_NE(ends[1].message().find(other), std::string::npos) << ends[1].message();
  }
}

TEST(DeviceCommunicator, ASumBesideAMaximumFailsAndNamesBoth) {
  Job job(2, 1);
  const auto ranks = job.Make({0, 1});
  std::vector<Bytes> results(2, Bytes(4));
  const Bytes operand(4);
  const std::vector<Status> ends = OnThreads(2, [&](size_t rank) {
    return ranks[rank]->AllReduce(operand.data(), results[rank].data(), 4, DType::kF32,
                                  rank == 0 ? Reduction::kSum : Reduction::kMax);
  });
  for (const Status& end : ends) {
    EXPECT_NE(end.message().find("at a sum of the program's own"), std::string::npos) << end.message();
    EXPECT_NE(end.message().find("at a maximum of the program's own"), std::string::npos) << end.message();
  }
}

TEST(DeviceCommunicator, ALateDeviceFailsAllByNameAndTheNextCallWorks) {
  Job job(2, 1);
  const auto ranks = job.Make({1, 0});
  for (uint32_t process = 0; process < 2; ++process) job.executor(process).SetDeadline(0.2);
  // Messages of this size are sent only after the receiver arrived, so a late rank cannot complete the call alone.
  const int64_t bytes = 400000;
  const Bytes operand = Pack(std::vector<float>(bytes / 4, 1));
  std::vector<Bytes> results(2, Bytes(bytes));
  const auto sum = [&](size_t rank) {
    return ranks[rank]->AllReduce(operand.data(), results[rank].data(), bytes, DType::kF32, Reduction::kSum);
  };
  const Status first = sum(0);
  EXPECT_NE(first.message().find("DeadlineError: all-reduce"), std::string::npos) << first.message();
  EXPECT_NE(first.message().find("rank 1 of 2 has not arrived"), std::string::npos) << first.message();
  EXPECT_FALSE(sum(1).ok());  // rank 1 arrives at the call that rank 0 has given up
  for (uint32_t process = 0; process < 2; ++process) job.executor(process).SetDeadline(30);
  ExpectOk(OnThreads(2, sum));
  EXPECT_EQ(Unpack<float>(results[0])[0], 2);
}

TEST(DeviceCommunicator, ALateSenderIsNamedByItsRankInTheWholeGroup) {
  Job job(4, 1);
  const auto ranks = job.Make({3, 2, 1, 0});
  for (uint32_t process = 0; process < 4; ++process) job.executor(process).SetDeadline(0.2);
  Bytes received(8);
  const Status end = ranks[1]->Wait(ranks[1]->Receive(received.data(), 8, /*from=*/3, "collective-permute"));
  EXPECT_NE(end.message().find("rank 3 of the group 3,1 has not arrived"), std::string::npos) << end.message();
}

// A device whose call failed may have skipped calls that the other device still makes.
TEST(DeviceCommunicator, DevicesThatFailedUnlikeOftenNeverJoinOneCall) {
  Job job(2, 1);
  const auto ranks = job.Make({0, 1});
  for (uint32_t process = 0; process < 2; ++process) job.executor(process).SetDeadline(0.2);
  ranks[0]->Count(Status(Code::kInternal, "elsewhere"));
  Bytes operand = Pack<float>({1});
  std::vector<Bytes> results(2, Bytes(4));
  for (const Status& end : OnThreads(2, [&](size_t rank) {
         return ranks[rank]->AllReduce(operand.data(), results[rank].data(), 4, DType::kF32, Reduction::kSum);
       })) {
    EXPECT_FALSE(end.ok());
  }
}

// When XLA's wait for one transfer of a permute has failed, XLA frees the memory of all transfers of the permute.
TEST(DeviceCommunicator, AFailedTransferLeavesNoOtherOneInFlight) {
  Job job(3, 1);
  const auto ranks = job.Make({0, 1, 2});
  Bytes in(3000000), out(3000000, std::byte{1}), received(out.size());
  job.Kill(1);
  std::thread permutes([&] {
    const auto from = ranks[0]->Receive(in.data(), static_cast<int64_t>(in.size()), 1, "shift");
    ranks[0]->Send(out.data(), static_cast<int64_t>(out.size()), 2, "shift");
    EXPECT_NE(ranks[0]->Wait(from).message().find("process 1"), std::string::npos);
    std::fill(out.begin(), out.end(), std::byte{2});  // overwrites `out`, as the next user of the memory might
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the receive may have failed by now
  const auto last = ranks[2]->Receive(received.data(), static_cast<int64_t>(received.size()), 0, "shift");
  const Status status = ranks[2]->Wait(last);
  EXPECT_TRUE(status.ok()) << status.message();
  permutes.join();
  EXPECT_EQ(received, Bytes(received.size(), std::byte{1}));
}

TEST(DeviceCommunicator, ADeadProcessIsNamedAtOnce) {
  Job job(3, 1);
  const auto ranks = job.Make({0, 1, 2});
  Bytes operand = Pack<float>({1});
  std::vector<Bytes> results(3, Bytes(4));
  job.Kill(2);
  for (const Status& end : OnThreads(2, [&](size_t rank) {
         return ranks[rank]->AllReduce(operand.data(), results[rank].data(), 4, DType::kF32, Reduction::kSum);
       })) {
    EXPECT_NE(end.message().find("process 2"), std::string::npos) << end.message();
  }
}

}  // namespace
}  // namespace jaxcomm
