#include "cc/executor/thread_cache.h"

#include <cstddef>
#include <future>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(ThreadCacheTest, AJobNeverQueuesBehindABlockedOne) {
  std::promise<void> gate;
  std::shared_future<void> open = gate.get_future().share();
  std::vector<std::promise<void>> done(8);
  ThreadCache threads;
  for (size_t i = 0; i + 1 < done.size(); ++i) {
    threads.Run([&, i] {
      open.wait();
      done[i].set_value();
    });
  }
  threads.Run([&] { done.back().set_value(); });
  done.back().get_future().wait();  // while seven are blocked
  gate.set_value();
  for (size_t i = 0; i + 1 < done.size(); ++i) done[i].get_future().wait();
}

}  // namespace
}  // namespace jaxcomm
