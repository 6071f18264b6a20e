// Tests the end of connections: a process that sends a malformed notice, reports of a process's end, and a process that
// leaves a job and joins another job.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(Disconnect, AMalformedNoticeEndsItsSender) {
  Executor executor(/*num_threads=*/1);
  for (const std::string& notice : {std::string("garbage"), std::string(), std::string(100, '\1')}) {
    executor.messages().OnNotice(3, notice);
  }
  const std::vector<GoneProcess> gone = executor.messages().gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].process, 3u);
  EXPECT_FALSE(gone[0].has_left);
  EXPECT_EQ(gone[0].why.message(),
            "process 3 has been cut off: it sent a notice of 7 bytes that cannot be read.\n"
            "  Cure: run the same jaxcomm in all processes.");
}

TEST(Disconnect, AFailureRecordsTheProcessForWhoseLackItIs) {
  Executor executor(/*num_threads=*/1);
  const Status why(Code::kInternal, "psum: rank 2 is gone: process 2 has died");
  executor.messages().OnNotice(
      1, Encode(Failure{CallId{5, 0, 0, 0}, why, /*step=*/0, Failure::Gone{2, false, "process 2 has died"}}));
  std::vector<GoneProcess> gone = executor.messages().gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].why.message(), "process 1 reports: process 2 has died");
  executor.messages().OnPeerLeft(2, Status(Code::kInternal, "process 2 has left"));
  gone = executor.messages().gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].why.message(), "process 2 has left");
  EXPECT_TRUE(gone[0].has_left);
}

// Successive jobs of process 0, in which rank 1 never arrives.
class JobAfterJob : public testing::Test {
 protected:
  JobAfterJob() {
    network_.Connect(0, &executor_.messages());
    network_.Connect(1, &other_.messages());  // receives process 0's notices
  }
  ~JobAfterJob() override { network_.Stop(); }

  std::shared_ptr<MessageSite> MakeSite() {
    MessageGroup group{{{0, 0}, {1, 10}}, "all_reduce/direct/2", {}};
    group.lists = {registry_.Find(group.list, 0), nullptr};
    auto site = MessageSite::Make({"psum", "data", "auto", "train.py:1"}, {Kind::kAllReduce, Reduction::kSum},
                                  CommunicatorOf({group}), /*site=*/0, {group}, /*process=*/0);
    EXPECT_TRUE(site.ok()) << site.status().message();
    EXPECT_TRUE(site.value()->SetLeaves({{DType::kF32, 4}}, executor_.stats()).ok());
    return site.value();
  }
  // Launches a call of rank 0, which fails because process 1 has died. Returns the launch's number.
  uint32_t Launch(const std::shared_ptr<MessageSite>& site, int64_t run) {
    executor_.messages().OnPeerGone(1, Status(Code::kInternal, "process 1 has died"));
    auto* const bytes = reinterpret_cast<std::byte*>(&value_);
    std::promise<Status> end;
    executor_.messages().Arrive(site, run, 0, {{bytes}, {bytes}}, [&](const Status& status) { end.set_value(status); });
    EXPECT_FALSE(end.get_future().get().ok());
    const auto next = executor_.messages().plans().Next();
    return next.empty() ? 99 : next[0].launch - 1;
  }

  float value_ = 1;
  MessageRegistry registry_;
  SimulatedNetwork network_{2, /*seed=*/1};
  Executor executor_{/*num_threads=*/1}, other_{/*num_threads=*/1};
};

TEST_F(JobAfterJob, KnowsNothingOfTheFirst) {
  const auto site = MakeSite();
  executor_.messages().Connect(&network_.transport(0));
  EXPECT_EQ(Launch(site, /*run=*/1), 0u);
  EXPECT_EQ(Launch(site, /*run=*/2), 1u);
  network_.Stop();
  EXPECT_TRUE(executor_.messages().Disconnect(Clock::now() + std::chrono::seconds(30)).ok());
  EXPECT_TRUE(executor_.messages().gone().empty());
  executor_.messages().Connect(&network_.transport(0));
  EXPECT_EQ(Launch(site, /*run=*/3), 0u);
}

// A launch that is refused while the process is not connected must not be counted, because the other processes do not
// count it.
TEST_F(JobAfterJob, CountsNoLaunchInBetween) {
  const auto site = MakeSite();
  executor_.messages().Refuse(*site, /*run=*/2, /*rank=*/0, Status(Code::kInternal, "no memory"));
  executor_.messages().Connect(&network_.transport(0));
  EXPECT_EQ(Launch(site, /*run=*/3), 0u);
}

}  // namespace
}  // namespace jaxcomm
