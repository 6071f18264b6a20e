#include "cc/ffi/sites/call_sites.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

// A thread of the parent may hold a mutex of the executor during the fork. The child does not have this thread, so the
// mutex stays locked in the child.
TEST(CallSites, EndInAForkedChildWhateverThreadsOfTheParentHeld) {
  const Result<SiteRecord> record =
      SiteRecord::Decode("4:psum 4:data 10:all_reduce 3:sum 6:direct 0 1 2 0 0 0 1 1 12:all_reduce/2 0 0 0 1 ");
  ASSERT_TRUE(record.ok()) << record.status().message();
  Result<std::unique_ptr<CallSites>> sites = CallSites::Make(record.value());
  ASSERT_TRUE(sites.ok()) << sites.status().message();
  std::atomic<bool> forks{true};
  std::thread holder([&] {
    while (forks) TheExecutor().local().Forget(nullptr);
  });
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      sites.value().reset();
      _exit(0);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    if (status != 0) break;
  }
  forks = false;
  holder.join();
}

}  // namespace
}  // namespace jaxcomm
