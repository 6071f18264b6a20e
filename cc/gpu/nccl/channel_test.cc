#include "cc/gpu/nccl/channel.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc/gpu/nccl/communicator.h"
#include "cc/gpu/nccl/fake/control.h"
#include "cc/kernels/reduce.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

// A rank of two: it sends chunk 0, receives chunk 0 into slot 0, and adds rank 0's and then rank 1's.
std::shared_ptr<const Messages> Exchange(uint32_t rank) {
  std::vector<uint32_t> words = {Messages::kMagic, 1, 2, rank, 1, 1, 1, 1, 1, 1, 1 - rank, 0, 1 - rank, 0, 1, 0, 2};
  words.push_back(rank);
  words.push_back(1 - rank);
  return std::make_shared<const Messages>(Messages::Decode(words.data(), words.size()).value());
}

Status Add(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
           size_t bytes) {
  plain::Find(dtype, reduction)(sources.data(), sources.size(), &to, 1, 1, bytes);
  return Status();
}

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() : nccl_(Loaded()) {
    Control<void()>("fake_reset")();
    Id id;
    nccl_.GetUniqueId(&id);
    const auto join = [this, id](uint32_t rank) {
      return std::move(Communicator::Create(nccl_, {2, rank, id}, nullptr, Soon()).value());
    };
    auto other = std::async(std::launch::async, join, 1);
    made_[0] = join(0);
    made_[1] = other.get();
  }

  static Clock::time_point Soon(std::chrono::milliseconds after = std::chrono::seconds(20)) {
    return Clock::now() + after;
  }

  // What a rank ends with.
  Status Run(uint32_t rank, std::vector<std::vector<float>*> leaves, Clock::time_point deadline = Soon()) {
    std::vector<Leaf> layout;
    std::vector<std::byte*> at;
    for (std::vector<float>* leaf : leaves) {
      layout.push_back({DType::kF32, static_cast<int64_t>(leaf->size() * sizeof(float))});
      at.push_back(reinterpret_cast<std::byte*>(leaf->data()));
    }
    const Runner runner(Exchange(rank), Layout(layout), Reduction::kSum);
    std::vector<std::byte> scratch(runner.scratch_bytes());
    NcclChannel channel(nccl_, made_[rank]->comm(), nullptr, deadline, Add);
    return runner.Run(at, scratch.data(), channel);
  }

  const Library nccl_;
  std::unique_ptr<Communicator> made_[2];
};

TEST_F(ChannelTest, BothEndWithTheSameSums) {
  {
    std::vector<float> a[2] = {{1, 2, 3}, {10, 20, 30}}, b[2] = {{4}, {40}};
    auto other = std::async(std::launch::async, [&] { return Run(1, {&a[1], &b[1]}); });
    const Status status = Run(0, {&a[0], &b[0]});
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(other.get().ok());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(a[rank], (std::vector<float>{11, 22, 33}));
      EXPECT_EQ(b[rank], (std::vector<float>{44}));
    }
  }
  std::string calls(1 << 10, '\0');
  calls.resize(Control<size_t(int, char*, size_t)>("fake_calls")(0, calls.data(), calls.size()));
  EXPECT_NE(calls.find("send 12 to 1\nsend 4 to 1\nreceive 12 from 1\nreceive 4 from 1\n"), std::string::npos);
}

TEST_F(ChannelTest, APeerThatDoesNotComeIsAnErrorAtTheDeadline) {
  std::vector<float> a = {1, 2, 3};
  const Status status = Run(0, {&a}, Soon(std::chrono::milliseconds(50)));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("ending a group: its messages were not launched after 0."), std::string::npos);
}

TEST_F(ChannelTest, MessagesOfOtherSizesAreAnError) {
  std::vector<float> a = {1, 2, 3}, b = {1, 2};
  auto other = std::async(std::launch::async, [&] { return Run(1, {&b}); });
  EXPECT_NE(Run(0, {&a}).message().find("invalid usage"), std::string::npos);
  EXPECT_NE(other.get().message().find("invalid usage"), std::string::npos);
}

TEST_F(ChannelTest, EveryRefusalIsAnErrorThatSaysWhatItWas) {
  for (const auto& [function, words] :
       {std::pair("ncclGroupStart", "starting a group: "), std::pair("ncclSend", "sending: "),
        std::pair("ncclRecv", "receiving: "), std::pair("ncclGroupEnd", "ending a group: ")}) {
    Control<void()>("fake_reset")();
    Control<void(const char*, int, int)>("fake_fail")(function, 1, 6);
    std::vector<float> a = {1};
    const Status status = Run(0, {&a});
    EXPECT_EQ(status.message().rfind(words, 0), 0u) << status.message();
    EXPECT_NE(status.message().find("remote process exited"), std::string::npos);
    EXPECT_EQ(a, (std::vector<float>{1}));
  }
  Control<void()>("fake_reset")();
  Control<void(const char*, int, int)>("fake_fail")("ncclCommGetAsyncError", 1, 6);
  std::vector<float> a = {1};
  EXPECT_EQ(Run(0, {&a}).message().rfind("ending a group: remote process exited", 0), 0u);
}

}  // namespace
}  // namespace jaxcomm::nccl
