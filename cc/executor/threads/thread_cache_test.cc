#include "cc/executor/threads/thread_cache.h"

#include <cstddef>
#include <future>
#include <thread>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(ThreadCacheTest, AJobNeverQueuesBehindABlockedOne) {
  std::promise<void> gate;
  std::shared_future<void> open = gate.get_future().share();
  std::vector<std::promise<void>> done(8);
  ThreadCache threads;
  for (size_t i = 0; i + 1 < done.size(); ++i) {
    EXPECT_TRUE(threads.Run([&, i] {
      open.wait();
      done[i].set_value();
    }));
  }
  EXPECT_TRUE(threads.Run([&] { done.back().set_value(); }));
  done.back().get_future().wait();  // the last job runs while seven jobs are blocked
  gate.set_value();
  for (size_t i = 0; i + 1 < done.size(); ++i) done[i].get_future().wait();
}

TEST(ThreadCacheTest, WhereNoThreadCanBeMadeOnlyAnIdleOneTakesAJob) {
  std::promise<void> gate, started;
  ThreadCache threads;
  EXPECT_TRUE(threads.Run([&] {
    started.set_value();
    gate.get_future().wait();
  }));
  started.get_future().wait();
  const NoThreads none;
  std::promise<void> done;
  const auto job = [&] { done.set_value(); };
  EXPECT_FALSE(threads.Run(job));
  gate.set_value();
  while (!threads.Run(job)) std::this_thread::yield();  // Run succeeds only after the first job has ended
  done.get_future().wait();
}

}  // namespace
}  // namespace jaxcomm
