#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "cc/transport/shm/testing/job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// The thread of a rank may call Help while another thread ends the program with Leave.
TEST(LeaveTest, AThreadMayHelpMeanwhile) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::byte> bytes(200 << 10), into(200 << 10);  // these outlive the job
    ShmJob job(2, int64_t{2} << 20);
    std::atomic<bool> over{false};
    for (uint32_t i = 0; i < 300; ++i) {
      const MessageId id = Id(/*call=*/1, /*from=*/0, /*to=*/1, i);
      job[1].Post(0, id, All(into), false, [](const Status&, const std::shared_ptr<const std::byte>&) {});
      job[0].Send({{1, id}}, All(std::as_const(bytes)), [](const Status&) {});
    }
    std::thread helper([&] {
      while (!over) job[0].Help(std::chrono::milliseconds(1), false, [] { return false; });
    });
    job[0].Leave();
    over = true;
    helper.join();
  }
}

}  // namespace
}  // namespace jaxcomm
