// The handlers over a CUDA and a libnccl that need no GPU: ranks are threads, each on a device of its own.

#include "cc/messages/messages.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "cc/ffi/cuda/fake/call_frame.h"
#include "cc/ffi/cuda/fake/exported.h"
#include "cc/ffi/lender.h"
#include "cc/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm {

namespace {

using nccl::Control;
using nccl::kFake;

constexpr uint32_t kRanks = 3;

// What XLA lends to the rank that the thread is.
thread_local nccl::Comm the_loan = nullptr;
thread_local std::vector<int64_t> the_request;

int64_t Lend(const XLA_FFI_CallFrame* frame, const DeviceGroups* groups, void** communicator, char* error,
             int64_t size) {
  if (frame->stage == XLA_FFI_ExecutionStage_PREPARE) {
    for (int64_t i = 0; i < groups->count; ++i) the_request.push_back(groups->sizes[i]);
    the_request.insert(the_request.end(), groups->positions, groups->positions + groups->sizes[0]);
    return 0;
  }
  *communicator = the_loan;
  if (the_loan == nullptr) std::snprintf(error, static_cast<size_t>(size), "XLA lends none, it says");
  return the_loan == nullptr;
}

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
    ASSERT_EQ(jaxcomm_register_messages("direct", reinterpret_cast<char*>(words.data()), bytes, error, 256), 0)
        << error;
  }
}

class MessagesTest : public testing::Test {
 protected:
  MessagesTest() : machine_(kRanks), nccl_(nccl::Loaded()) {
    Control<void()>("fake_reset")();
    nccl_.GetUniqueId(&id_);
    for (uint32_t ranks : {2u, kRanks}) RegisterDirect(ranks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      cudaSetDevice(static_cast<int>(rank));
      cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking);
    }
    jaxcomm_nccl_set_deadline(20);
    jaxcomm_nccl_lender(reinterpret_cast<void*>(&Lend));
    board_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  ~MessagesTest() override {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      jaxcomm_nccl_leave("data", static_cast<int>(rank));
      cudaStreamDestroy(streams_[rank]);
    }
    MakeXlas({});
    EXPECT_EQ(Control<int()>("fake_live")(), 0);
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

  std::string Join(uint32_t rank) {
    char error[1024] = "";
    jaxcomm_nccl_join(kFake, "data", static_cast<int>(rank), kRanks, rank, "\n", id_.bytes, nullptr, 0, board_.c_str(),
                      0, error, sizeof(error));
    return error;
  }

  std::string Borrow(uint32_t device, uint32_t rank, uint32_t ranks = kRanks) {
    char error[1024] = "";
    jaxcomm_nccl_borrow(kFake, "data", static_cast<int>(device), ranks, rank, board_.c_str(), error, sizeof(error));
    return error;
  }

  // XLA's communicator of so many ranks, in which rank r is at places[r]; what there was before ends.
  void MakeXlas(const std::vector<int>& places) {
    for (const nccl::Comm comm : xlas_) nccl_.CommAbort(comm);
    xlas_.assign(places.size(), nullptr);
    for (size_t rank = 0; rank < places.size(); ++rank) {
      nccl::Config config;
      config.blocking = 0;
      const int count = static_cast<int>(places.size());
      nccl_.CommInitRankConfig(&xlas_[rank], count, id_, places[rank], &config);
    }
  }

  std::string Ours(uint32_t rank, std::vector<float>& x) {
    fake::Call call(XLA_FFI_ExecutionStage_EXECUTE, streams_[rank]);
    call.InPlace(x).Text("what", "psum").Text("group", "data").Text("messages", "direct").Text("reduction", "sum");
    return call.Number("iteration", -1).Shares("shares", {1.0}).Run(JaxcommMessages);
  }

  std::string Lent(uint32_t rank, std::vector<float>& x) {
    the_loan = rank < xlas_.size() ? xlas_[rank] : nullptr;
    fake::Call call(XLA_FFI_ExecutionStage_EXECUTE, streams_[rank]);
    call.InPlace(x).Text("what", "psum").Text("group", "data").Text("messages", "direct").Text("reduction", "sum");
    return call.Numbers("groups", {0, 1, 2}).Numbers("sizes", {3}).Run(JaxcommMessagesLent);
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
  std::vector<nccl::Comm> xlas_;
  std::string board_;
};

const std::vector<std::string> kFine(kRanks);

TEST_F(MessagesTest, OverOurCommunicatorsAllRanksGetTheSum) {
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  std::vector<float> x[kRanks] = {{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Ours(rank, x[rank]); }), kFine);
  for (const auto& each : x) EXPECT_EQ(each, (std::vector<float>{111, 222, 333}));
}

// The last element tells in which order ranks were added: another one gives 0.
TEST_F(MessagesTest, InXlasCommunicatorRanksFindEachOtherWhateverTheirPlaces) {
  for (const std::vector<int>& places : {std::vector<int>{2, 0, 1}, {1, 0, 2}, {0, 1, 2}}) {
    Control<void()>("fake_reset")();
    MakeXlas(places);
    for (uint32_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Borrow(rank, rank), "");
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> x[kRanks] = {{1, 2, 1 << 25}, {10, 20, -(1 << 25)}, {100, 200, 1}};
      ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Lent(rank, x[rank]); }), kFine);
      for (const auto& each : x) EXPECT_EQ(each, (std::vector<float>{111, 222, 1}));
    }
    for (int place = 0; place < static_cast<int>(kRanks); ++place) {
      EXPECT_EQ(Count(Calls(place), "send 4 to"), kRanks) << "the places are told once";
      EXPECT_EQ(Count(Calls(place), "send 12 to"), 2 * (kRanks - 1));
    }
  }
}

TEST_F(MessagesTest, OnXlasCommunicatorADeadlineNamesTheRankAndStopsNothing) {
  MakeXlas({2, 0, 1});
  for (uint32_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Borrow(rank, rank), "");
  jaxcomm_nccl_set_deadline(0.2);
  std::vector<float> x[kRanks] = {{1}, {2}, {3}};
  const std::vector<std::string> said = OnRanks({0, 1}, [&](uint32_t rank) { return Lent(rank, x[rank]); });
  for (const std::string& each : said) {
    EXPECT_EQ(each.rfind("jaxcomm: DeadlineError: psum #1 over 'data' (4 B): rank 2 of 3 has not arrived after 0.", 0),
              0u)
        << each;
    EXPECT_NE(each.find("\n  Cure: end this process. XLA owns the communicator"), std::string::npos) << each;
  }
  const std::string later = Lent(0, x[0]);
  EXPECT_EQ(later.rfind("jaxcomm: group 'data' has failed: DeadlineError: psum #1 over 'data'", 0), 0u) << later;
  for (int place : {2, 0}) {
    EXPECT_EQ(Calls(place).find("abort"), std::string::npos);
    EXPECT_EQ(Calls(place).find("revoke"), std::string::npos);
  }
}

TEST_F(MessagesTest, WhereNcclBlocksOnXlasCommunicatorTheDeadlineHoldsAndNothingIsQueuedLater) {
  MakeXlas({0, 1, 2});
  for (uint32_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Borrow(rank, rank), "");
  jaxcomm_nccl_set_deadline(0.2);
  Control<void(int)>("fake_stall")(400);
  std::vector<float> x[kRanks] = {{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
  for (const std::string& each : OnRanks({0, 1, 2}, [&](uint32_t rank) { return Lent(rank, x[rank]); })) {
    EXPECT_NE(each.find("psum #1 over 'data' (12 B): not all of the 3 ranks have finished after 0.2 s"),
              std::string::npos)
        << each;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(Count(Calls(0), "send 12 to"), 0u);
}

TEST_F(MessagesTest, XlasCommunicatorMustBeOfTheGroup) {
  MakeXlas({0, 1});
  ASSERT_EQ(Borrow(0, 0), "");
  std::vector<float> x = {1};
  EXPECT_EQ(Lent(0, x), "jaxcomm: XLA lends a communicator of 2 ranks; the group has 3");
}

TEST_F(MessagesTest, RanksThatCannotAllBeRightAreTold) {
  MakeXlas({0, 1, 2});
  for (const auto& [device, rank] : {std::pair(0u, 0u), {1u, 0u}, {2u, 2u}}) ASSERT_EQ(Borrow(device, rank), "");
  std::vector<float> x[kRanks] = {{1}, {2}, {3}};
  const std::vector<std::string> said = OnRanks({0, 1, 2}, [&](uint32_t rank) { return Lent(rank, x[rank]); });
  EXPECT_NE(said[2].find("in XLA's communicator, where this is place 2, the places say that they are of ranks 0,0,2; "
                         "this is rank 2 of 3"),
            std::string::npos)
      << said[2];
}

TEST_F(MessagesTest, NcclsOwnErrorOnXlasCommunicatorIsTold) {
  MakeXlas({0, 1, 2});
  ASSERT_EQ(Borrow(0, 0), "");
  Control<void(const char*, int, int)>("fake_fail")("ncclAllGather", 1, 6);
  std::vector<float> x = {1};
  const std::string said = Lent(0, x);
  EXPECT_NE(said.find("telling the ranks' places: remote process exited or there was a network error"),
            std::string::npos)
      << said;
}

TEST_F(MessagesTest, WhyXlaLendsNoneIsHandedOn) {
  ASSERT_EQ(Borrow(0, 0), "");
  std::vector<float> x = {1};
  EXPECT_EQ(Lent(0, x), "jaxcomm: messages: XLA lends none, it says");
}

TEST_F(MessagesTest, TheCommunicatorIsRequestedForTheCallsGroups) {
  the_request.clear();
  fake::Call call(XLA_FFI_ExecutionStage_PREPARE, nullptr);
  EXPECT_EQ(call.Text("what", "psum").Numbers("groups", {0, 2, 1}).Numbers("sizes", {2, 1}).Run(JaxcommMessagesPrepare),
            "");
  EXPECT_EQ(the_request, (std::vector<int64_t>{2, 1, 0, 2}));
  fake::Call without(XLA_FFI_ExecutionStage_PREPARE, nullptr);
  EXPECT_EQ(without.Text("what", "psum").Run(JaxcommMessagesPrepare), "jaxcomm: messages: the call has no groups");
}

TEST_F(MessagesTest, ARankOfItsOwnKeepsItsOperand) {
  ASSERT_EQ(Borrow(0, 0, 1), "");
  std::vector<float> x = {1, 2};
  EXPECT_EQ(Ours(0, x), "");
  EXPECT_EQ(Lent(0, x), "");
  EXPECT_EQ(x, (std::vector<float>{1, 2}));
}

TEST_F(MessagesTest, AGroupIsOnOurCommunicatorsOrOnXlas) {
  ASSERT_EQ(Borrow(0, 0), "");
  std::vector<float> x = {1};
  EXPECT_EQ(Ours(0, x), "jaxcomm: messages: group 'data' has none of ours; XLA lends them");
  char error[256] = "";
  const uint32_t gone = 1;
  EXPECT_EQ(jaxcomm_nccl_without("data", 0, &gone, 1, board_.c_str(), error, sizeof(error)), 1);
  EXPECT_STREQ(error, "its communicators are XLA's");
  ASSERT_EQ(OnRanks({0, 1, 2}, [&](uint32_t rank) { return Join(rank); }), kFine);
  MakeXlas({0, 1, 2});
  EXPECT_EQ(Lent(0, x), "jaxcomm: messages: group 'data' has communicators of ours");
}

}  // namespace
}  // namespace jaxcomm
