// C functions of the core that Python calls. c_function.h defines how they report errors.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/base/thread.h"
#include "cc/executor/decide/comparison.h"
#include "cc/ffi/kept_failures.h"
#include "cc/ffi/runtime.h"
#include "cc/kernels/isa.h"
#include "cc/kernels/reduce.h"

namespace jaxcomm {
namespace {

// Measures the seconds of one pass on all processors. The pass reads `ranks` buffers of zeros, and stores their sum to
// the first `writes` of these buffers. If all buffers are written, no all-reduce in this memory can be faster. Returns
// the median of kRounds rounds. A round over small buffers has many passes, so that the time to start the threads does
// not matter. Returns nullopt if the type is unknown, or if the system lacks memory or threads.
std::optional<double> FloorSeconds(const char* dtype, int64_t ranks, int64_t writes, int64_t bytes) try {
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
  if (type == types.end()) return std::nullopt;
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
    if (helpers.size() + 1 < num_threads) return std::nullopt;
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(passes));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
} catch (const std::exception&) {
  return std::nullopt;
}

}  // namespace

JAXCOMM_EXPORT int jaxcomm_register_program(const char* name, const void* bytes, int64_t num_bytes,
                                            JaxcommText* error) {
  return Answer(error, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? ThePrograms().Add(name, words.value().data(), words.value().size()) : words.status();
  });
}

JAXCOMM_EXPORT int jaxcomm_set_deadline(double seconds, JaxcommText* error) {
  return Answer(error, [&] { TheExecutor().SetDeadline(seconds); });
}

// Compares the times of two ways to run the same calls, as comparison.h describes. `found` receives the mean of each
// way, and the value that a difference of the means must exceed to count.
JAXCOMM_EXPORT int jaxcomm_compare(const double* first, int64_t num_first, const double* second, int64_t num_second,
                                   double* found, JaxcommText* error) {
  return Answer(error, [&] {
    const std::vector<double> one(first, first + num_first), other(second, second + num_second);
    const auto are_valid = [](const std::vector<double>& times) {
      return times.size() >= 2 &&
             std::all_of(times.begin(), times.end(), [](double each) { return std::isfinite(each); });
    };
    if (!are_valid(one) || !are_valid(other)) return InvalidArgument("each way needs two finite times or more");
    const Comparison compared = Compare(one, other);
    found[0] = compared.first, found[1] = compared.second, found[2] = compared.least();
    return Status();
  });
}

// Copies the statistics of all call sites as JSON. `spans` is 1 to include the history of the whole run.
JAXCOMM_EXPORT int jaxcomm_stats(int spans, JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] { CopyText(TheExecutor().stats().Json(spans != 0), json); });
}

JAXCOMM_EXPORT int jaxcomm_trials(JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] { CopyText(TheExecutor().stats().TrialsJson(), json); });
}

// Copies the latest calls of this process, and the latest call that each device has joined, as JSON.
JAXCOMM_EXPORT int jaxcomm_calls(JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] {
    CopyText("{\"calls\":" + TheExecutor().stats().CallsJson() +
                 ",\"devices\":" + TheExecutor().messages().LastCallsJson() + "}",
             json);
  });
}

// Keeps the failure of a call that XLA runs, as if the core had reported it. `record` is as in error_texts.h.
JAXCOMM_EXPORT int jaxcomm_add_failure(const char* message, const char* record, JaxcommText* error) {
  return Answer(error, [&] { TheFailures().Keep(Status(Code::kDeadlineExceeded, message, record)); });
}

JAXCOMM_EXPORT int jaxcomm_reset_stats(JaxcommText* error) {
  return Answer(error, [] { TheExecutor().stats().Reset(); });
}

JAXCOMM_EXPORT int jaxcomm_kernel_isa(JaxcommText* name, JaxcommText* error) {
  return Answer(error, [&] { CopyText(KernelIsa(), name); });
}

JAXCOMM_EXPORT int jaxcomm_floor_seconds(const char* dtype, int64_t ranks, int64_t writes, int64_t bytes,
                                         double* seconds, JaxcommText* error) {
  return Answer(error, [&] {
    const std::optional<double> measured = FloorSeconds(dtype, ranks, writes, bytes);
    if (measured) *seconds = *measured;
    return measured
               ? Status()
               : InvalidArgument(std::to_string(ranks) + " buffers of " + std::to_string(bytes) + " bytes of " + dtype +
                                 " cannot be timed here.\n  Cure: float16, bfloat16, float32 or float64; "
                                 "fewer or smaller buffers; a higher limit on threads (`ulimit -u`).");
  });
}

}  // namespace jaxcomm
