#include "cc/gpu/executor/ranks.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "cc/gpu/executor/device.h"

namespace jaxcomm::fused {
namespace {

// The largest number of blocks per rank. More blocks would only shorten the slice of each block.
constexpr uint32_t kMostBlocks = 64;

// One in kSpared processors of a device is left free for XLA's kernels, which may run on another stream meanwhile.
constexpr uint32_t kSpared = 8;

// The difference between the host's clock and a device's clock, in nanoseconds.
struct HostClock {
  int64_t offset;  // host time minus device time
  int64_t error;   // the largest error of `offset`, apart from later drift
};

int64_t HostNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Compares a device's clock with the host's clock. `word` is host memory that the device can write. Reads the device's
// clock kReadings times and uses the shortest reading, because a reading's error is at most half its duration.
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

}  // namespace

Ranks::Ranks(CallName name, std::shared_ptr<const Program> program)
    : name_(std::move(name)),
      program_(std::move(program)),
      table_(Table::Build(*program_)),
      clock_words_(ClockWords(program_->ranks(), static_cast<uint32_t>(program_->ops().size()))) {}

Result<std::shared_ptr<Ranks>> Ranks::Make(CallName name, std::shared_ptr<const Program> program,
                                           const std::vector<int>& devices, CallSiteStats& stats) {
  std::shared_ptr<Ranks> made(new Ranks(std::move(name), std::move(program)));
  Status status = made->FindSlots(devices);
  if (status.ok()) status = made->ConnectPeers();
  if (status.ok()) status = made->Allocate();
  const CallName& its = made->name_;
  if (!status.ok()) return Status(status.code(), its.name + " over '" + its.axes + "': " + status.message());
  made->stats_ = stats.Site({its.name, its.axes, its.plan, made->program_->ranks(), its.bytes});
  return made;
}

// Waits for all devices before any memory is freed, because the kernels read other devices' memory.
Ranks::~Ranks() {
  for (const Slot& slot : slots_) {
    if (slot.block.memory == nullptr) continue;
    const OnDevice on(slot.device);
    cudaDeviceSynchronize();
  }
}

Status Ranks::FindSlots(const std::vector<int>& devices) {
  const uint32_t ranks = program_->ranks();
  if (ranks > kMaxRanks) {
    return InvalidArgument(std::to_string(ranks) + " ranks; a fused kernel allows " + std::to_string(kMaxRanks));
  }
  if (devices.size() != ranks) {
    return InvalidArgument(std::to_string(devices.size()) + " devices for a program of " + std::to_string(ranks) +
                           " ranks");
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (rank == 0 || devices[rank] != devices[rank - 1]) {
      if (std::count(devices.begin(), devices.begin() + rank, devices[rank]) > 0) {
        return InvalidArgument("ranks of one device must be consecutive");
      }
      slots_.push_back({devices[rank], rank, 0, {}});
    }
    ++slots_.back().num_ranks;
    slot_of_.push_back(slots_.size() - 1);
  }
  return Status();
}

Status Ranks::ConnectPeers() const {
  for (const Slot& slot : slots_) {
    const OnDevice on(slot.device);
    if (on.error() != cudaSuccess) return CudaError("GPU " + std::to_string(slot.device), on.error());
    for (const Slot& peer : slots_) {
      if (peer.device == slot.device) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer.device, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
      if (error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled) continue;
      const Status failed = CudaError(
          "GPU " + std::to_string(slot.device) + " cannot reach the memory of GPU " + std::to_string(peer.device),
          error);
      return Status(Code::kUnimplemented, failed.message() +
                                              ".\n  Cure: reduce over GPUs that NVLink or one PCIe root "
                                              "connects, or call jax.lax here.");
    }
  }
  return Status();
}

// All blocks must run at once, so a device runs at most one block on each processor that is not left to XLA. All ranks
// have the same number of blocks. The device with the fewest processors per rank limits this number.
Status Ranks::Allocate() {
  num_blocks_ = kMostBlocks;
  for (const Slot& slot : slots_) {
    const std::string who = "GPU " + std::to_string(slot.device);
    int processors = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, slot.device);
    if (error != cudaSuccess) return CudaError(who, error);
    const uint32_t used = static_cast<uint32_t>(processors) - static_cast<uint32_t>(processors) / kSpared;
    num_blocks_ = std::min(num_blocks_, used / slot.num_ranks);
    if (num_blocks_ == 0) return InvalidArgument(who + " has fewer processors than ranks");
  }
  const size_t records = size_t{program_->ranks()} * num_blocks_ + 1;  // the last record holds CompareClock's word
  void* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&memory, sizeof(FailureRecord) * records, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess) return CudaError("memory for the kernel's failure records", error);
  failures_.reset(static_cast<FailureRecord*>(memory));
  std::fill_n(failures_.get(), records, FailureRecord{});
  clock_word_ = &failures_[records - 1].call;
  for (Slot& slot : slots_) {
    Result<Block> block = Block::Make(slot.device, *program_, table_, slot.num_ranks, num_blocks_);
    if (!block.ok()) return block.status();
    slot.block = std::move(block.value());
  }
  return Status();
}

Status Ranks::Load(uint32_t rank, DType dtype, Reduction reduction) const {
  const OnDevice on(slots_[slot_of_[rank]].device);
  return LoadFused(dtype, reduction);
}

Status Ranks::Run(uint32_t rank, const Call& call, cudaStream_t stream) {
  const Slot& slot = slots_[slot_of_[rank]];
  Arguments arguments{};
  arguments.table = slot.block.tables;
  for (uint32_t peer = 0; peer < program_->ranks(); ++peer) {
    const Slot& its = slots_[slot_of_[peer]];
    arguments.flags[peer] = its.block.FlagsOf(peer - its.first_rank);
  }
  arguments.failures = failures_.get();
  arguments.clocks = {slot.block.clocks(), static_cast<uint32_t>(program_->ops().size())};
  arguments.data = call.data;
  arguments.stride = arguments.bytes = call.bytes;
  arguments.delays = call.delays;
  arguments.timeout = static_cast<uint64_t>(call.deadline * 1e9);
  arguments.no_sum = NoSum(call.dtype);
  arguments.first_rank = slot.first_rank;
  arguments.num_blocks = num_blocks_;
  const OnDevice on(slot.device);
  return LaunchFused(arguments, call.dtype, call.reduction, slot.num_ranks, stream);
}

Status Ranks::Check() {
  std::lock_guard<std::mutex> lock(checking_);
  std::vector<FailureRecord> records(size_t{program_->ranks()} * num_blocks_);
  uint64_t failed = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].call = __atomic_load_n(&failures_[i].call, __ATOMIC_ACQUIRE);
    if (records[i].call > checked_) records[i].failure = failures_[i].failure;
    failed = std::max(failed, records[i].call);
  }
  if (failed <= checked_) return Status();
  checked_ = failed;
  stats_->RecordFailure();
  return FailureStatus(name_, failed, program_->ranks(), num_blocks_, records.data());
}

Status Ranks::RecordCalls() {
  std::lock_guard<std::mutex> lock(recording_);
  std::vector<std::vector<uint64_t>> clocks;
  int64_t error = 0;
  if (Status status = ReadClocks(clocks, error); !status.ok()) return status;
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < kKeptCalls; ++i) {
    if (clocks[0][i * clock_words_] > recorded_) calls.push_back(clocks[0][i * clock_words_]);
  }
  std::sort(calls.begin(), calls.end());
  for (const uint64_t call : calls) {
    const std::vector<uint64_t> merged = Merged(clocks, call);
    std::optional<CallRecord> record = merged.empty() ? std::nullopt : RecordOf(merged.data(), error, *program_);
    if (!record && call == calls.back()) break;  // the call may still be running
    if (record) stats_->Record(std::move(*record));
    recorded_ = call;
  }
  return Status();
}

// Reads the clocks of all slots. With several slots, converts the times to the host's clock. The difference between two
// times is wrong by at most `error`.
Status Ranks::ReadClocks(std::vector<std::vector<uint64_t>>& clocks, int64_t& error) const {
  for (const Slot& slot : slots_) {
    HostClock clock{0, 0};
    if (slots_.size() > 1) {
      const Result<HostClock> compared = CompareClock(slot.device, clock_word_);
      if (!compared.ok()) return compared.status();
      clock = compared.value();
    }
    error = std::max(error, 2 * clock.error);
    std::vector<uint64_t>& words = clocks.emplace_back(clock_words_ * kKeptCalls);
    const OnDevice on(slot.device);
    const cudaError_t failed =
        cudaMemcpy(words.data(), slot.block.clocks(), words.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost);
    if (failed != cudaSuccess) return CudaError("the fused executor's clocks", failed);
    for (size_t i = 0; i < words.size(); ++i) {
      const bool is_time = i % clock_words_ != 0 && words[i] != 0;  // the first word is the call's number
      if (is_time) words[i] += static_cast<uint64_t>(clock.offset);
    }
  }
  return Status();
}

// Returns the clock words of one call, for all ranks and ops. Returns an empty vector if a slot has not begun the call
// or has overwritten the call's clocks.
std::vector<uint64_t> Ranks::Merged(const std::vector<std::vector<uint64_t>>& clocks, uint64_t call) const {
  const uint32_t ranks = program_->ranks();
  const size_t at = call % kKeptCalls * clock_words_;
  for (const std::vector<uint64_t>& words : clocks) {
    if (words[at] != call) return {};
  }
  std::vector<uint64_t> merged{call};
  const auto of = [&](uint32_t rank) { return clocks[slot_of_[rank]][at + merged.size()]; };
  for (uint32_t i = 0; i < 2 * ranks; ++i) merged.push_back(of(i % ranks));
  for (const Op& op : program_->ops()) merged.push_back(of(op.rank));
  return merged;
}

}  // namespace jaxcomm::fused
