// libFuzzer target. Every program that the decoder accepts must stay within the ranks' buffers.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cc/executor/local/local_call.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kMaxRanks = 64;  // programs with more ranks are not run, so that inputs run fast
constexpr int64_t kOdd = 3, kFloats = 200;

void Require(bool condition) {
  if (!condition) std::abort();
}

// One rank's leaves. Each leaf has its own allocation, so that sanitizers notice an access beyond the leaf.
std::vector<std::vector<std::byte>> Leaves(size_t slices) {
  return {std::vector<std::byte>(slices * kFloats * sizeof(float)), std::vector<std::byte>(slices * kOdd)};
}

void RunAll(LocalCall& call, Progress progress) {
  while (!progress.slices.empty()) {
    const OpSlice slice = progress.slices.back();
    progress.slices.pop_back();
    Progress more = call.Run(slice);
    progress.slices.insert(progress.slices.end(), more.slices.begin(), more.slices.end());
    for (Completion& end : more.completions) progress.completions.push_back(std::move(end));
  }
  for (const Completion& end : progress.completions) end.done(end.status);
}

void Run(Kind kind, const std::shared_ptr<const Program>& program) {
  if (!CheckChunks(kind, *program).ok()) return;
  const uint32_t ranks = program->ranks();
  const auto site = std::make_shared<LocalSite>("fuzz", "data", "fuzz", kind, Reduction::kSum, program);
  CallSiteStats stats;
  Require(site->SetLeaves({{DType::kF32, kFloats * sizeof(float)}, {DType::kS8, kOdd}}, stats).ok());
  LocalCall call(site, /*names=*/nullptr, 1, Clock::now());
  std::vector<std::vector<std::vector<std::byte>>> operands(ranks), results(ranks);
  std::vector<int> ends(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    operands[rank] = Leaves(kind == Kind::kReduceScatter ? ranks : 1);
    if (kind != Kind::kAllReduce) results[rank] = Leaves(kind == Kind::kAllGather ? ranks : 1);
    Buffers buffers;
    for (auto& leaf : operands[rank]) buffers.operands.push_back(leaf.data());
    for (auto& leaf : kind == Kind::kAllReduce ? operands[rank] : results[rank]) buffers.results.push_back(leaf.data());
    RunAll(call,
           call.Arrive(
               rank, std::move(buffers), [&, rank](const Status& status) { ends[rank] += status.ok(); }, Clock::now()));
  }
  for (const int end : ends) Require(end == 1);
}

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint32_t> words(size / sizeof(uint32_t));
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * sizeof(uint32_t));
  jaxcomm::Result<jaxcomm::Program> decoded = jaxcomm::Program::Decode(words.data(), words.size());
  if (!decoded.ok() || decoded.value().ranks() > jaxcomm::kMaxRanks) return 0;
  const auto program = std::make_shared<const jaxcomm::Program>(std::move(decoded.value()));
  for (const auto kind : {jaxcomm::Kind::kAllReduce, jaxcomm::Kind::kReduceScatter, jaxcomm::Kind::kAllGather}) {
    jaxcomm::Run(kind, program);
  }
  return 0;
}
