// The handlers over a CUDA and a libnccl that need no GPU: ranks are threads, each on a device of its own.

#include "cc/program/messages.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "cc/gpu/ffi/fake/call_frame.h"
#include "cc/gpu/ffi/fake/exported.h"
#include "cc/gpu/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm {

namespace {

using nccl::Control;
using nccl::kFake;

constexpr uint32_t kRanks = 3;

// Everybody sends its one chunk to everybody, and adds in the order of the ranks.
void RegisterDirect(uint32_t ranks) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<uint32_t> words = {Messages::kMagic, 1, ranks, rank, 1, ranks - 1, 1, ranks - 1, ranks - 1, 1};
    std::vector<uint32_t> receives, sum = {0, ranks};
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      const auto slot = static_cast<uint32_t>(receives.size() / 3) + 1;
      sum.push_back(peer == rank ? Messages::kOwn : slot);
      if (peer == rank) continue;
      words.insert(words.end(), {peer, 0});
      receives.insert(receives.end(), {peer, 0, slot});
    }
    words.insert(words.end(), receives.begin(), receives.end());
    words.insert(words.end(), sum.begin(), sum.end());
    char error[256] = "";
    const auto bytes = static_cast<int64_t>(words.size() * sizeof(uint32_t));
    ASSERT_EQ(jaxcomm_register_messages("direct", words.data(), bytes, error, 256), 0) << error;
  }
}

class MessagesTest : public testing::Test {
 protected:
  MessagesTest() : machine_(kRanks), nccl_(nccl::Loaded()) {
    Control<void()>("fake_reset")();
    nccl_.GetUniqueId(&id_);
    RegisterDirect(kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      cudaSetDevice(static_cast<int>(rank));
      cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking);
    }
    jaxcomm_nccl_set_deadline(20, nullptr, 0);
  }

  ~MessagesTest() override {
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  // What every rank returns, each on a thread.
  template <typename Work>
  std::vector<std::string> OnRanks(const std::vector<uint32_t>& ranks, Work work) {
    std::vector<std::future<std::string>> running;
    for (const uint32_t rank : ranks) running.push_back(std::async(std::launch::async, work, rank));
    std::vector<std::string> results;
    for (auto& each : running) results.push_back(each.get());
    return results;
  }

  std::string Join(uint32_t rank, uint32_t ranks = kRanks) {
    char error[1024] = "";
    jaxcomm_nccl_join(kFake, group_.c_str(), static_cast<int>(rank), ranks, rank, id_.bytes, arrivals_.c_str(), error,
                      sizeof(error));
    return error;
  }

  std::string Sum(uint32_t rank, std::vector<float>& x, const std::string& name = "psum") {
    fake::Call call(XLA_FFI_ExecutionStage_EXECUTE, streams_[rank]);
    call.InPlace(x).Text("name", name).Text("group", group_).Text("messages", "direct").Text("reduction", "sum");
    return call.Run(JaxcommMessages);
  }

  static std::string Calls(int rank) {
    std::string calls(1 << 12, '\0');
    calls.resize(Control<size_t(int, char*, size_t)>("fake_calls")(rank, calls.data(), calls.size()));
    return calls;
  }

  static size_t Count(const std::string& text, const std::string& word) {
    size_t count = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
    return count;
  }

  fake::Machine machine_;
  const nccl::Library nccl_;
  nccl::Id id_;
  cudaStream_t streams_[kRanks];
  const std::string group_ = testing::UnitTest::GetInstance()->current_test_info()->name();  // nobody else's
  const std::string arrivals_ = testing::TempDir() + "/" + group_;
};

const std::vector<std::string> kFine(kRanks);

// The last element tells in which order ranks were added: another one gives 0.
TEST_F(MessagesTest, AllRanksGetTheSumAndSendOnlyWhatTheyMust) {
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::vector<float> x[kRanks] = {{1, 2, 1 << 25}, {10, 20, -(1 << 25)}, {100, 200, 1}};
    ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Sum(rank, x[rank]); }), kFine);
    for (const auto& each : x) EXPECT_EQ(each, (std::vector<float>{111, 222, 1}));
  }
  for (int rank = 0; rank < static_cast<int>(kRanks); ++rank) {
    EXPECT_EQ(Count(Calls(rank), "send 128 to"), 2 * kRanks) << "a header for each call";
    EXPECT_EQ(Count(Calls(rank), "send 12 to"), 2 * (kRanks - 1));
  }
}

TEST_F(MessagesTest, ADeadlineNamesTheRankAndStopsTheOthersAndEveryLaterCallIsTold) {
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  jaxcomm_nccl_set_deadline(0.2, nullptr, 0);
  std::vector<float> x[kRanks] = {{1}, {2}, {3}};
  const std::string call = "DeadlineError: psum #1 over '" + group_ + "' (4 B): ";
  for (const std::string& each : OnRanks({0, 1}, [&](uint32_t rank) { return Sum(rank, x[rank]); })) {
    EXPECT_EQ(each.rfind("jaxcomm: " + call + "rank 2 of 3 has not arrived after 0.", 0), 0u) << each;
  }
  EXPECT_EQ(Count(Calls(0), "abort"), 1u);
  EXPECT_EQ(Count(Calls(0), "send 4 to"), 0u);
  const std::string later = Sum(0, x[0]);
  EXPECT_EQ(later.rfind("jaxcomm: group '" + group_ + "' has failed: " + call, 0), 0u) << later;
  EXPECT_NE(later.find("\n  Cure: start the job's processes anew."), std::string::npos) << later;
}

TEST_F(MessagesTest, ADifferentCallIsAnErrorOnEveryRankThatNamesBothAndSendsNothing) {
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  std::vector<float> x[kRanks] = {{1}, {2}, {3}};
  const std::vector<std::string> said =
      OnRanks({0, 1, 2}, [&](uint32_t rank) { return Sum(rank, x[rank], rank == 1 ? "pmean" : "psum"); });
  const std::string over = " #1 over '" + group_ + "' (4 B)";
  EXPECT_EQ(said[0].rfind("jaxcomm: psum" + over + ": rank 1 makes another call than rank 0: pmean" + over + ".\n", 0),
            0u)
      << said[0];
  EXPECT_EQ(
      said[1].rfind("jaxcomm: pmean" + over + ": ranks 0,2 make another call than rank 1: psum" + over + ".\n", 0), 0u)
      << said[1];
  EXPECT_EQ(Count(Calls(0), "send 4 to"), 0u);
  EXPECT_EQ(x[0], (std::vector<float>{1}));
}

TEST_F(MessagesTest, AnotherShapeIsAnotherCall) {
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  std::vector<float> x[kRanks] = {{1}, {2}, {3}};
  std::vector<float> turned = {3, 4};
  OnRanks({0, 1, 2}, [&](uint32_t rank) { return rank == 2 ? Sum(rank, turned) : Sum(rank, x[rank]); });
  EXPECT_EQ(Count(Calls(0), "send 4 to"), 0u);
}

TEST_F(MessagesTest, NcclsOwnErrorIsToldWithTheCallsName) {
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  Control<void(const char*, int, int)>("fake_fail")("ncclAllGather", 1, 6);
  std::vector<float> x = {1};
  const std::string said = Sum(0, x);
  EXPECT_EQ(said.rfind("jaxcomm: psum #1 over '" + group_ +
                           "' (4 B): ranks 1,2 of 3 have not arrived; comparing calls: "
                           "remote process exited",
                       0),
            0u)
      << said;
}

TEST_F(MessagesTest, ARankOfItsOwnKeepsItsOperand) {
  ASSERT_EQ(Join(0, 1), "");
  std::vector<float> x = {1, 2};
  EXPECT_EQ(Sum(0, x), "");
  EXPECT_EQ(x, (std::vector<float>{1, 2}));
}

TEST_F(MessagesTest, WhoHasNotJoinedIsTold) {
  std::vector<float> x = {1};
  EXPECT_EQ(Sum(0, x), "jaxcomm: device 0 has not joined group '" + group_ + "'");
}

}  // namespace
}  // namespace jaxcomm
