// The fused executor's shared state, and the C functions through which Python accesses that state.
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

Result<std::shared_ptr<fused::Ranks>> FusedRuntime::Make(CallName name, std::shared_ptr<const Program> program,
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

JAXCOMM_EXPORT int jaxcomm_fused_register(const char* name, const void* bytes, int64_t num_bytes, JaxcommText* error) {
  return Answer(error, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? TheFusedRuntime().programs.Add(name, words.value().data(), words.value().size())
                      : words.status();
  });
}

// Fails with the error of a failed call that was not reported before. Succeeds if there is no such error.
JAXCOMM_EXPORT int jaxcomm_fused_check(JaxcommText* error) {
  return Answer(error, [] { return TheFusedRuntime().Check(); });
}

JAXCOMM_EXPORT int jaxcomm_fused_set_deadline(double seconds, JaxcommText* error) {
  return Answer(error, [&] { TheFusedRuntime().deadline.store(seconds); });
}

JAXCOMM_EXPORT int jaxcomm_fused_set_process(uint32_t number, JaxcommText* error) {
  return Answer(error, [&] { TheFusedRuntime().process.store(static_cast<int32_t>(number)); });
}

JAXCOMM_EXPORT int jaxcomm_fused_reset_stats(JaxcommText* error) {
  return Answer(error, [] {
    for (const auto& ranks : TheFusedRuntime().All()) ranks->RecordCalls();  // keeps old calls out of later statistics
    TheFusedRuntime().stats.Reset();
  });
}

// Copies the statistics as JSON, in the format of jaxcomm_stats.
JAXCOMM_EXPORT int jaxcomm_fused_stats(JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] {
    for (const auto& ranks : TheFusedRuntime().All()) ranks->RecordCalls();
    CopyText(TheFusedRuntime().stats.Json(), json);
  });
}

// Fails, with CUDA's reason, if this process sees no device.
JAXCOMM_EXPORT int jaxcomm_cuda_check(JaxcommText* error) {
  return Answer(error, [] {
    int count = 0;
    const cudaError_t outcome = cudaGetDeviceCount(&count);
    return outcome == cudaSuccess && count > 0 ? Status() : Status(Code::kInternal, cudaGetErrorString(outcome));
  });
}

// Copies the version of the CUDA runtime that is linked into this shared object, such as "13.0".
JAXCOMM_EXPORT int jaxcomm_cuda_runtime(JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] {
    int version = 0;
    cudaRuntimeGetVersion(&version);
    CopyText(std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100), text);
  });
}

// Copies the kind of an operand's memory on a device, as MemoryKind of reach.h names it.
JAXCOMM_EXPORT int jaxcomm_cuda_memory(int device, uint64_t address, JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] { CopyText(fused::MemoryKind(reinterpret_cast<const std::byte*>(address), device), text); });
}

// Fails if the device may not access the operand.
JAXCOMM_EXPORT int jaxcomm_cuda_reach(int device, uint64_t address, JaxcommText* error) {
  return Answer(
      error, [&] { return fused::CheckReachable(reinterpret_cast<const std::byte*>(address), /*bytes=*/1, {device}); });
}

}  // namespace jaxcomm
