// The plain C functions that Python calls through ctypes. Text goes out through a buffer of the caller's: the return
// value is the length the whole text needs, so that a caller whose buffer was too small can come again.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/thread.h"
#include "cc/ffi/runtime.h"
#include "cc/kernels/isa.h"
#include "cc/kernels/reduce.h"

namespace jaxcomm {
namespace {

int64_t CopyOut(const std::string& text, char* out, int64_t capacity) {
  if (capacity > 0) {
    const size_t size = std::min(text.size(), static_cast<size_t>(capacity) - 1);
    std::memcpy(out, text.data(), size);
    out[size] = '\0';
  }
  return static_cast<int64_t>(text.size());
}

}  // namespace

// Returns 0, or the length of an error message.
JAXCOMM_EXPORT int64_t jaxcomm_register_program(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                                int64_t capacity) {
  // The bytes of a Python object need not be aligned for words.
  std::vector<uint32_t> words(static_cast<size_t>(num_bytes) / sizeof(uint32_t));
  if (words.size() * sizeof(uint32_t) != static_cast<size_t>(num_bytes)) {
    return CopyOut("program of " + std::to_string(num_bytes) + " bytes is not a whole number of words", error,
                   capacity);
  }
  if (num_bytes > 0) std::memcpy(words.data(), bytes, static_cast<size_t>(num_bytes));
  const Status status = ThePrograms().Add(name, words.data(), words.size());
  return status.ok() ? 0 : CopyOut(status.message(), error, capacity);
}

JAXCOMM_EXPORT void jaxcomm_set_deadline(double seconds) { TheExecutor().SetDeadline(seconds); }

JAXCOMM_EXPORT int64_t jaxcomm_stats(char* out, int64_t capacity) {
  return CopyOut(TheExecutor().stats().Json(), out, capacity);
}

JAXCOMM_EXPORT void jaxcomm_reset_stats() { TheExecutor().stats().Reset(); }

JAXCOMM_EXPORT const char* jaxcomm_kernel_isa() { return KernelIsa(); }

// Seconds of one pass that reads `ranks` buffers of zeros and stores their sum to the first `writes` of them, on every
// processor: what no allreduce in this memory can beat, if it stores to all. The median of some rounds; small buffers
// are passed over often enough in each that starting the threads does not count. Negative: no such type is known, or
// the system lacks the memory or the threads.
JAXCOMM_EXPORT double jaxcomm_floor_seconds(const char* dtype, int64_t ranks, int64_t writes, int64_t bytes) try {
  constexpr int kRounds = 9;
  constexpr size_t kLine = 64;
  constexpr size_t kRoundBytes = size_t{256} << 20;
  const size_t size = (static_cast<size_t>(bytes) + kLine - 1) / kLine * kLine;
  const size_t passes = std::max<size_t>(1, kRoundBytes / (size * static_cast<size_t>(ranks)));
  std::vector<std::vector<std::byte>> memory(static_cast<size_t>(ranks), std::vector<std::byte>(size + kLine));
  std::vector<std::byte*> buffers;
  for (auto& buffer : memory) {
    void* start = buffer.data();
    size_t space = buffer.size();
    buffers.push_back(static_cast<std::byte*>(std::align(kLine, size, start, space)));
  }
  const std::map<std::string, DType> types = {
      {"float16", DType::kF16}, {"bfloat16", DType::kBF16}, {"float32", DType::kF32}, {"float64", DType::kF64}};
  const auto type = types.find(dtype);
  if (type == types.end()) return -1;
  const ReduceFn reduce = FindReduce(type->second, Reduction::kSum);
  const size_t stored = static_cast<size_t>(writes);
  const size_t num_threads = std::max(1u, std::thread::hardware_concurrency());
  const auto share = [&](size_t thread) {
    const size_t begin = size / kLine * thread / num_threads * kLine;
    const size_t end = size / kLine * (thread + 1) / num_threads * kLine;
    std::vector<std::byte*> at;
    for (std::byte* buffer : buffers) at.push_back(buffer + begin);
    for (size_t pass = 0; pass < passes; ++pass) reduce(at.data(), at.size(), at.data(), stored, stored, end - begin);
  };
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    std::vector<std::thread> helpers;
    helpers.reserve(num_threads);
    for (size_t thread = 1; thread < num_threads; ++thread) {
      std::optional<std::thread> helper = StartThread([&share, thread] { share(thread); });
      if (helper) helpers.push_back(std::move(*helper));
    }
    share(0);
    for (std::thread& helper : helpers) helper.join();
    if (helpers.size() + 1 < num_threads) return -1;
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(passes));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
} catch (const std::exception&) {
  return -1;
}

}  // namespace jaxcomm
