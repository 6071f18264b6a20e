#include "cc/gpu/executor/clocks.h"

#include <chrono>

#include "cc/gpu/executor/error.h"
#include "cc/gpu/executor/fused.h"
#include "cc/gpu/executor/on_device.h"

namespace jaxcomm::fused {
namespace {

int64_t HostNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// The shortest of some readings is the least wrong, by half of what it took.
Result<HostClock> CompareClock(int device, uint64_t* word) {
  constexpr int kReadings = 5;
  const OnDevice on(device);
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return CudaError("a device's clock", error);
  HostClock clock{0, INT64_MAX};
  for (int i = 0; i < kReadings && error == cudaSuccess; ++i) {
    const int64_t before = HostNow();
    error = LaunchReadClock(word, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    const int64_t after = HostNow();
    const int64_t half = (after - before) / 2 + 1;
    if (half < clock.error) clock = {before + half - static_cast<int64_t>(*word), half};
  }
  cudaStreamDestroy(stream);
  if (error != cudaSuccess) return CudaError("a device's clock", error);
  return clock;
}

std::vector<uint64_t> MergeClocks(const Program& program, const Slots& slots, uint64_t call,
                                  const std::vector<SlotClocks>& clocks) {
  const uint32_t ranks = program.ranks();
  const size_t words = ClockWords(ranks, static_cast<uint32_t>(program.ops().size())), at = call % kKeptCalls * words;
  for (const SlotClocks& its : clocks) {
    if (its.words[at] != call) return {};
  }
  std::vector<uint64_t> merged(words);
  merged[0] = call;
  const auto take = [&](size_t word, uint32_t rank) {
    const SlotClocks& its = clocks[slots.of_rank[rank]];
    const uint64_t then = its.words[at + word];
    merged[word] = then == 0 ? 0 : then + static_cast<uint64_t>(its.clock.offset);
  };
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    take(1 + rank, rank);
    take(1 + ranks + rank, rank);
  }
  for (size_t op = 0; op < program.ops().size(); ++op) take(1 + 2 * ranks + op, program.ops()[op].rank);
  return merged;
}

}  // namespace jaxcomm::fused
