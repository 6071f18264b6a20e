// The fused executor's shared state, and the C functions by which Python reaches it.
#include "cc/gpu/ffi/runtime.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/base/c_function.h"
#include "cc/gpu/executor/reach.h"

namespace jaxcomm {

FusedRuntime& TheFusedRuntime() {
  static FusedRuntime* runtime = std::make_unique<FusedRuntime>().release();
  return *runtime;
}

Result<std::shared_ptr<fused::Ranks>> FusedRuntime::Make(fused::CallName name, std::shared_ptr<const Program> program,
                                                         const std::vector<int>& devices) {
  Result<std::shared_ptr<fused::Ranks>> made = fused::Ranks::Make(std::move(name), std::move(program), devices, stats);
  if (made.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(made.value());
  }
  return made;
}

std::vector<std::shared_ptr<fused::Ranks>> FusedRuntime::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  all_.erase(std::remove_if(all_.begin(), all_.end(), [](const auto& weak) { return weak.expired(); }), all_.end());
  std::vector<std::shared_ptr<fused::Ranks>> all;
  for (const auto& weak : all_) {
    if (std::shared_ptr<fused::Ranks> ranks = weak.lock()) all.push_back(std::move(ranks));
  }
  return all;
}

Status FusedRuntime::Run(fused::Ranks& ranks, uint32_t rank, const fused::Ranks::Call& call, cudaStream_t stream) {
  const Status status = ranks.Run(rank, call, stream);
  return status.ok() ? Check() : status;
}

Status FusedRuntime::Check() {
  for (const auto& ranks : All()) {
    const Status status = ranks->Check();
    if (!status.ok()) return status;
  }
  return Status();
}

JAXCOMM_EXPORT int jaxcomm_fused_register(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                          int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? TheFusedRuntime().programs.Add(name, words.value().data(), words.value().size())
                      : words.status();
  });
}

// The failure of a call that no caller has had yet.
JAXCOMM_EXPORT int jaxcomm_fused_check(char* error, int64_t capacity) {
  return Answer(error, capacity, [] { return TheFusedRuntime().Check(); });
}

JAXCOMM_EXPORT int jaxcomm_fused_set_deadline(double seconds, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { TheFusedRuntime().deadline.store(seconds); });
}

JAXCOMM_EXPORT int jaxcomm_fused_set_process(uint32_t number, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { TheFusedRuntime().process.store(static_cast<int32_t>(number)); });
}

JAXCOMM_EXPORT int jaxcomm_fused_reset_stats(char* error, int64_t capacity) {
  return Answer(error, capacity, [] {
    for (const auto& ranks : TheFusedRuntime().All()) ranks->RecordCalls();  // or they would come with the next ones
    TheFusedRuntime().stats.Reset();
  });
}

// As jaxcomm_stats of the core for CPUs.
JAXCOMM_EXPORT int jaxcomm_fused_stats(char* json, int64_t json_capacity, int64_t* size, char* error,
                                       int64_t capacity) {
  return Answer(error, capacity, [&] {
    for (const auto& ranks : TheFusedRuntime().All()) ranks->RecordCalls();
    CopyText(TheFusedRuntime().stats.Json(), json, json_capacity, size);
  });
}

// Fails, with CUDA's reason, where this process sees no device.
JAXCOMM_EXPORT int jaxcomm_cuda_check(char* error, int64_t capacity) {
  return Answer(error, capacity, [] {
    int count = 0;
    const cudaError_t outcome = cudaGetDeviceCount(&count);
    return outcome == cudaSuccess && count > 0 ? Status() : Status(Code::kInternal, cudaGetErrorString(outcome));
  });
}

// The version of the CUDA runtime in this object, such as "13.0".
JAXCOMM_EXPORT int jaxcomm_cuda_runtime(char* text, int64_t text_capacity, int64_t* size, char* error,
                                        int64_t capacity) {
  return Answer(error, capacity, [&] {
    int version = 0;
    cudaRuntimeGetVersion(&version);
    CopyText(std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100), text, text_capacity, size);
  });
}

// The kind of memory in which an operand on a device lies, in words.
JAXCOMM_EXPORT int jaxcomm_cuda_memory(int device, uint64_t address, char* text, int64_t text_capacity, int64_t* size,
                                       char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    CopyText(fused::MemoryKind(reinterpret_cast<const std::byte*>(address), device), text, text_capacity, size);
  });
}

// Fails where another device may not touch it.
JAXCOMM_EXPORT int jaxcomm_cuda_reach(int device, uint64_t address, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    return fused::CheckReachable(reinterpret_cast<const std::byte*>(address), /*bytes=*/1, {device});
  });
}

}  // namespace jaxcomm
