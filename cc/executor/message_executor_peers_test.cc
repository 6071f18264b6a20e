// Other processes that fail, leave or die, as this one sees it.
#include <cstddef>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/executor/notices.h"
#include "cc/program/message_registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// A transport over which everything has come before it is posted, and whose sends end when the test says so.
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

TEST(PeersTest, AProcessMayLeaveAsSoonAsItHasSentItsPart) {
  Script script;
  Executor executor(1);
  executor.messages().Connect(&script);
  MessageRegistry registry;
  MessageGroup group;
  group.ranks = {{0, 0}, {1, 10}};
  group.list = "all_reduce/ring/2";
  group.lists = {registry.Find(group.list, 0), nullptr};
  const auto site =
      MessageSite::Make({"psum", "data", "none", "train.py:57"}, Kind::kAllReduce, Reduction::kSum, 77, 0, {group}, 0);
  ASSERT_TRUE(site.ok()) << site.status().message();
  ASSERT_TRUE(site.value()->SetLeaves({{DType::kF32, 1024}}, executor.stats()).ok());
  std::vector<std::byte> bytes(1024);
  std::promise<Status> end;
  executor.messages().Arrive(site.value(), 1, 0, {{bytes.data()}, {bytes.data()}},
                             [&](const Status& status) { end.set_value(status); });
  const MessageSite& its = *site.value();
  executor.messages().OnNotice(1, Encode(Arrival{script.call, 1, 10, its.fingerprint(), its.text()}));
  // Its last message goes to the place of this process's first one, so it is not posted yet.
  executor.messages().OnPeerLeft(1, Status(Code::kInternal, "process 1 has left"));
  while (!script.sends.empty()) {
    const Sent done = std::move(script.sends.front());
    script.sends.pop_front();
    done(Status());
  }
  const Status status = end.get_future().get();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PeersTest, ProcessesThatAreGoneAreRemembered) {
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

TEST(PeersTest, AFailureMayComeBeforeThisProcessIsConnected) {
  Executor executor(1);
  executor.messages().OnNotice(1, Encode(Failure{{77, 0, 0, 0}, Status(Code::kInternal, "elsewhere"), 0}));
}

}  // namespace
}  // namespace jaxcomm
