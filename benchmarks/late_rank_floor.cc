// The least time of a sum of eight buffers after a late rank's arrival, in one process: two threads, of which one must
// be woken, read the buffers and store the sum to all of them (direct), or read the early ranks' sum and the late
// buffer and store the sum to all (join). Both take blocks, so a thread that wakes late does less.
//
//   g++ -O3 -march=native -pthread benchmarks/late_rank_floor.cc -o /tmp/floor && /tmp/floor 20
//
// The argument is the delay in milliseconds: a processor that idled for long takes longer to wake.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kBuffers = 8, kLate = 3, kTurns = 12;
constexpr size_t kLine = 16;    // floats in 64 bytes
constexpr size_t kBlock = 128;  // lines that a thread takes at a time

struct Line {
  alignas(64) float at[kLine];
};
using Buffer = std::vector<Line>;

template <typename Sources>
void Sum(const Sources& sources, std::vector<Buffer>& buffers, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    Line sum = (*sources[0])[i];
    for (size_t k = 1; k < sources.size(); ++k) {
      for (size_t j = 0; j < kLine; ++j) sum.at[j] += (*sources[k])[i].at[j];
    }
    for (Buffer& buffer : buffers) buffer[i] = sum;
  }
}

void Direct(std::vector<Buffer>& buffers, const Buffer&, size_t begin, size_t end) {
  std::array<const Buffer*, kBuffers> all;
  for (size_t k = 0; k < kBuffers; ++k) all[k] = &buffers[k];
  Sum(all, buffers, begin, end);
}

void Join(std::vector<Buffer>& buffers, const Buffer& early, size_t begin, size_t end) {
  Sum(std::array<const Buffer*, 2>{&early, &buffers[kLate]}, buffers, begin, end);
}

}  // namespace

int main(int argc, char** argv) {
  const auto delay = std::chrono::milliseconds(argc > 1 ? std::atoi(argv[1]) : 20);
  std::printf("bytes        direct      join\n");
  for (size_t bytes : {64u << 10, 256u << 10, 1u << 20, 2u << 20, 4u << 20, 8u << 20, 16u << 20}) {
    const size_t lines = bytes / sizeof(Line);
    std::vector<Buffer> buffers(kBuffers, Buffer(lines));
    Buffer early(lines);
    std::printf("%8zu KiB", bytes >> 10);
    for (const auto& run : {Direct, Join}) {
      std::vector<double> times;
      for (size_t turn = 0; turn < kTurns; ++turn) {
        for (Buffer& buffer : buffers) std::fill(buffer.begin(), buffer.end(), Line{{1}});
        std::binary_semaphore begin(0), done(0);
        std::atomic<size_t> next{0};
        const auto work = [&] {
          for (size_t at; (at = next.fetch_add(kBlock)) < lines;) run(buffers, early, at, std::min(at + kBlock, lines));
        };
        std::thread other([&] {
          begin.acquire();
          work();
          done.release();
        });
        std::this_thread::sleep_for(delay);
        std::fill(buffers[kLate].begin(), buffers[kLate].end(), Line{{2}});
        const auto arrival = Clock::now();
        begin.release();
        work();
        done.acquire();
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - arrival).count());
        other.join();
      }
      std::nth_element(times.begin(), times.begin() + kTurns / 2, times.end());
      std::printf("  %6.0f us", times[kTurns / 2]);
    }
    std::printf("\n");
  }
}
