// Time of a cache line from one processor to the other and back: whether they share a cache, which on a virtual
// machine may change from second to second, and with it what messages over shared memory take.
//
//   processors [first] [second] [looks]   // 0, 1 and 10; a look a second
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr long kRounds = 200000;

bool RunOn(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

double RoundTrip(int first, int second) {
  alignas(128) std::atomic<long> turn{0};
  alignas(128) std::atomic<bool> is_there{false};
  std::thread other([&] {
    is_there = RunOn(second);
    for (long round = 0; round < kRounds; ++round) {
      while (turn.load(std::memory_order_acquire) != 2 * round + 1) {
      }
      turn.store(2 * round + 2, std::memory_order_release);
    }
  });
  const bool is_here = RunOn(first);
  const auto begin = std::chrono::steady_clock::now();
  for (long round = 0; round < kRounds; ++round) {
    turn.store(2 * round + 1, std::memory_order_release);
    while (turn.load(std::memory_order_acquire) != 2 * round + 2) {
    }
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  other.join();
  return is_here && is_there ? took.count() / kRounds : -1;
}

}  // namespace

int main(int count, char** words) {
  const int first = count > 1 ? std::atoi(words[1]) : 0, second = count > 2 ? std::atoi(words[2]) : 1;
  const int looks = count > 3 ? std::atoi(words[3]) : 10;
  for (int look = 0; look < looks; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    const double nanoseconds = RoundTrip(first, second);
    if (nanoseconds < 0) {
      std::fprintf(stderr, "error: this machine has no processors %d and %d for us\n", first, second);
      return 1;
    }
    std::printf("%.0f ns there and back\n", nanoseconds);
    std::fflush(stdout);
  }
}
