// Tests how this process handles other processes that fail, leave or die.
#include <cstddef>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/executor/messages/notices.h"
#include "cc/program/message_registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// A transport on which every message arrives before its Post. The test decides when sends end.
class Script : public Transport {
 public:
  void Notify(uint32_t, std::string_view) override {}
  void Post(uint32_t, const MessageId&, std::vector<Span>, bool, Received done) override { done(Status(), nullptr); }
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan>, Sent done) override {
    call = to[0].id.call;
    sends.push_back(std::move(done));
  }
  void Flush() override {}
  void Cancel(const CallId&) override {}

  CallId call;
  std::deque<Sent> sends;
};

// Process 0 of two processes, and a call that both processes' ranks have joined.
class PeersTest : public testing::Test {
 protected:
  // Makes rank 0 join the call.
  std::future<Status> Arrive(const std::string& list, const std::vector<MessageRank>& ranks) {
    executor_.messages().Connect(&script_);
    MessageGroup group{ranks, list, std::vector<std::shared_ptr<const Messages>>(ranks.size())};
    group.lists[0] = registry_.Find(group.list, 0);
    site_ = MessageSite::Make({"psum", "data", "none", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 77, 0,
                              {group}, 0)
                .value();
    EXPECT_TRUE(site_->SetLeaves({{DType::kF32, 1024}}, executor_.stats()).ok());
    executor_.messages().Arrive(site_, 1, 0, {{bytes_.data()}, {bytes_.data()}},
                                [this](const Status& status) { end_.set_value(status); });
    return end_.get_future();
  }

  std::future<Status> Join(const std::string& list) {
    std::future<Status> end = Arrive(list, {{0, 0}, {1, 10}});
    executor_.messages().OnNotice(1, Encode(Arrival{script_.call, 1, 10, site_->fingerprint(), site_->text()}));
    return end;
  }

  Script script_;
  MessageRegistry registry_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(1024);
  std::promise<Status> end_;
  std::shared_ptr<MessageSite> site_;
  Executor executor_{1};
};

TEST_F(PeersTest, AProcessMayLeaveAsSoonAsItHasSentItsPart) {
  std::future<Status> end = Join("all_reduce/ring/2");
  // The receive of process 1's last message waits for this process's first send, so this receive is not posted yet.
  executor_.messages().OnPeerLeft(1, Status(Code::kInternal, "process 1 has left"));
  while (!script_.sends.empty()) {
    const Sent done = std::move(script_.sends.front());
    script_.sends.pop_front();
    done(Status());
  }
  const Status status = end.get();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(PeersTest, ARankThatAcceptsNoMessageIsNamedAtTheDeadline) {
  executor_.SetDeadline(0.3);
  const std::string message = Join("all_reduce/flat/2").get().message();
  EXPECT_NE(message.find("rank 1 of 2 has not accepted all messages after "), std::string::npos) << message;
  EXPECT_NE(message.find("; 0 waits."), std::string::npos) << message;
  EXPECT_NE(message.find("Rank 1 is process 1"), std::string::npos) << message;
}

TEST_F(PeersTest, ProcessesThatAreGoneAreRemembered) {
  Executor executor(1);
  const Clock::time_point before = Clock::now();
  executor.messages().OnPeerGone(3, Status(Code::kInternal, "process 3 has died"));
  executor.messages().OnPeerLeft(1, Status(Code::kInternal, "process 1 has left"));
  const std::vector<GoneProcess> gone = executor.messages().gone();
  ASSERT_EQ(gone.size(), 2u);
  EXPECT_EQ(gone[0].process, 1u);
  EXPECT_TRUE(gone[0].has_left);
  EXPECT_EQ(gone[1].process, 3u);
  EXPECT_FALSE(gone[1].has_left);
  EXPECT_EQ(gone[1].why.message(), "process 3 has died");
  EXPECT_LE(before, gone[1].since);
  EXPECT_LE(gone[1].since, gone[0].since);
}

// Process 1 reports that process 2 has ended, in a call that is over here. Process 1 then leaves before this process
// notices the end of process 2.
TEST_F(PeersTest, TheErrorNamesTheProcessForWhoseLackAnotherOneHasLeft) {
  std::future<Status> end = Arrive("all_reduce/flat/3", {{0, 0}, {1, 10}, {2, 20}});
  const Status why(Code::kInternal, "psum: rank 2 is gone: process 2 has died");
  executor_.messages().OnNotice(1,
                                Encode(Failure{{5, 0, 0, 0}, why, 0, Failure::Gone{2, false, "process 2 has died"}}));
  executor_.messages().OnPeerLeft(1, Status(Code::kInternal, "process 1 has left"));
  const Status status = end.get();
  EXPECT_EQ(status.ended_process(), 2u);
  EXPECT_NE(status.message().find("rank 2 is gone: process 1 reports: process 2 has died"), std::string::npos)
      << status.message();
}

TEST_F(PeersTest, AFailureMayComeBeforeThisProcessIsConnected) {
  Executor executor(1);
  executor.messages().OnNotice(1, Encode(Failure{{77, 0, 0, 0}, Status(Code::kInternal, "elsewhere"), 0}));
}

}  // namespace
}  // namespace jaxcomm
