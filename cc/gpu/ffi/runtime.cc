// The fused executor's shared state, and the plain C functions by which Python reaches it.
#include "cc/gpu/ffi/runtime.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/ffi/values.h"

namespace jaxcomm {

FusedRuntime& TheFusedRuntime() {
  static FusedRuntime* runtime = std::make_unique<FusedRuntime>().release();
  return *runtime;
}

Result<std::shared_ptr<fused::Ranks>> FusedRuntime::Make(fused::CallName name, std::shared_ptr<const Program> program,
                                                         fused::Places places,
                                                         std::unique_ptr<fused::Meeting> meeting) {
  Result<std::shared_ptr<fused::Ranks>> made =
      fused::Ranks::Make(std::move(name), std::move(program), std::move(places), std::move(meeting), stats);
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

int64_t CopyOut(const std::string& text, char* out, int64_t capacity) {
  if (capacity > 0) out[text.copy(out, static_cast<size_t>(capacity) - 1)] = '\0';
  return static_cast<int64_t>(text.size());
}

// Returns 0, or the length of an error message; so does the next.
JAXCOMM_EXPORT int64_t jaxcomm_fused_register(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                              int64_t capacity) {
  std::vector<uint32_t> words(static_cast<size_t>(num_bytes) / sizeof(uint32_t));
  std::copy_n(static_cast<const char*>(bytes), words.size() * sizeof(uint32_t), reinterpret_cast<char*>(words.data()));
  const Status status = TheFusedRuntime().programs.Add(name, words.data(), words.size());
  return status.ok() ? 0 : CopyOut(status.message(), error, capacity);
}

// The failure of a call that nobody was told of yet.
JAXCOMM_EXPORT int64_t jaxcomm_fused_check(char* error, int64_t capacity) {
  const Status status = TheFusedRuntime().Check();
  return status.ok() ? 0 : CopyOut(status.message(), error, capacity);
}

JAXCOMM_EXPORT void jaxcomm_fused_set_deadline(double seconds) { TheFusedRuntime().deadline.store(seconds); }

JAXCOMM_EXPORT void jaxcomm_fused_reset_stats() {
  for (const auto& ranks : TheFusedRuntime().All()) ranks->RecordCalls();  // or they would come with the next ones
  TheFusedRuntime().stats.Reset();
}

// As jaxcomm_stats of the core for CPUs.
JAXCOMM_EXPORT int64_t jaxcomm_fused_stats(char* out, int64_t capacity) {
  for (const auto& ranks : TheFusedRuntime().All()) ranks->RecordCalls();
  return CopyOut(TheFusedRuntime().stats.Json(), out, capacity);
}

}  // namespace jaxcomm
