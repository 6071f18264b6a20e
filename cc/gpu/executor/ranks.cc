#include "cc/gpu/executor/ranks.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cc/gpu/executor/clocks.h"
#include "cc/gpu/executor/error.h"
#include "cc/gpu/executor/no_sum.h"
#include "cc/gpu/executor/on_device.h"

namespace jaxcomm::fused {
namespace {

// More blocks than this only shorten the slices.
constexpr uint32_t kMostBlocks = 64;

// XLA's kernels, which another stream may run meanwhile, keep one of so many processors.
constexpr uint32_t kSpared = 8;

}  // namespace

Ranks::Ranks(CallName name, std::shared_ptr<const Program> program, Slots slots,
             std::unique_ptr<PeerMemory> peer_memory)
    : name_(std::move(name)),
      program_(std::move(program)),
      slots_(std::move(slots)),
      table_(Table::Build(*program_)),
      layout_(*program_, table_),
      peer_memory_(std::move(peer_memory)) {}

Result<std::shared_ptr<Ranks>> Ranks::Make(CallName name, std::shared_ptr<const Program> program, Slots slots,
                                           std::unique_ptr<PeerMemory> peer_memory, Stats& stats) {
  std::shared_ptr<Ranks> made(new Ranks(std::move(name), std::move(program), std::move(slots), std::move(peer_memory)));
  Status status = made->CheckSize();
  // Other processes wait for this one's outcome, whatever it is.
  if (status.ok()) status = made->peer_memory_->Connect(made->Allocate());
  if (status.ok()) status = made->Connect();
  if (!status.ok()) return made->Named(status);
  const CallName& its = made->name_;
  made->stats_ = stats.Site({its.name, its.axes, its.plan, made->program_->ranks(), its.bytes});
  return made;
}

Status Ranks::Named(const Status& status) const {
  if (status.ok()) return status;
  const char* const late = status.code() == Code::kDeadlineExceeded ? "DeadlineError: " : "";
  return Status(status.code(), late + name_.name + " over '" + name_.axes + "': " + status.message());
}

Status Ranks::CheckSize() const {
  const uint32_t ranks = program_->ranks();
  if (ranks > kMaxRanks) {
    return InvalidArgument(std::to_string(ranks) + " ranks; the fused executor takes " + std::to_string(kMaxRanks));
  }
  if (slots_.of_rank.size() != ranks) {
    return InvalidArgument(std::to_string(slots_.of_rank.size()) + " devices for a program of " +
                           std::to_string(ranks) + " ranks");
  }
  return Status();
}

Status Ranks::Allocate() {
  // After the ranks' messages a word for the clocks.
  const size_t messages = size_t{program_->ranks()} * kMostBlocks + 1;
  void* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&memory, sizeof(FailureRecord) * messages, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess) return CudaError("memory for the kernel's messages", error);
  failures_.reset(static_cast<FailureRecord*>(memory));
  std::fill_n(failures_.get(), messages, FailureRecord{});
  clock_word_ = &failures_[messages - 1].call;
  for (const size_t slot : slots_.here) {
    const Status status = Fill(slot);
    if (!status.ok()) return status;
  }
  return Status();
}

Status Ranks::Fill(size_t at) {
  const Slot& slot = slots_.all[at];
  const std::string who = "GPU " + std::to_string(slot.device);
  // A block for each processor that is not spared: they must all run at once.
  int processors = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, slot.device);
  if (error != cudaSuccess) return CudaError(who, error);
  const uint32_t used = static_cast<uint32_t>(processors) - static_cast<uint32_t>(processors) / kSpared;
  BlockHeader header{std::min(kMostBlocks, used / slot.num_ranks), {}};
  if (header.num_blocks == 0) return InvalidArgument(who + " has fewer processors than ranks");
  if (slots_.all.size() > 1) {
    const Result<HostClock> clock = CompareClock(slot.device, clock_word_);
    if (!clock.ok()) return clock.status();
    header.clock = clock.value();
  }
  const Result<std::byte*> block = peer_memory_->Allocate(at, layout_.Bytes(slot.num_ranks, header.num_blocks));
  if (!block.ok()) return block.status();
  const OnDevice on(slot.device);
  const Result<TableView> tables = layout_.Fill(block.value(), table_, slot.num_ranks, header);
  if (tables.ok()) arguments_[at].table = tables.value();
  return tables.status();
}

// All ranks have as many blocks: those of the slot that has the fewest.
Status Ranks::Connect() {
  const size_t mine = slots_.here[0];
  const OnDevice on(slots_.all[mine].device);
  num_blocks_ = kMostBlocks;
  for (size_t slot = 0; slot < slots_.all.size(); ++slot) {
    BlockHeader header;
    const cudaError_t error =
        cudaMemcpy(&header, peer_memory_->PeerViewOf(mine, slot).block, sizeof(header), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) return CudaError("the fused executor's headers", error);
    num_blocks_ = std::min(num_blocks_, header.num_blocks);
  }
  for (auto& [at, arguments] : arguments_) {
    for (uint32_t rank = 0; rank < program_->ranks(); ++rank) {
      const size_t there = slots_.of_rank[rank];
      const PeerView view = peer_memory_->PeerViewOf(at, there);
      arguments.peers[rank] = {layout_.FlagsOf(view.block, rank - slots_.all[there].first_rank, num_blocks_),
                               view.origin};
    }
    const PeerView own = peer_memory_->PeerViewOf(at, at);
    arguments.origin = own.origin;
    arguments.failures = failures_.get();
    arguments.clocks = {reinterpret_cast<uint64_t*>(own.block + layout_.clocks()),
                        static_cast<uint32_t>(program_->ops().size())};
    arguments.first_rank = slots_.all[at].first_rank;
    arguments.num_blocks = num_blocks_;
    arguments.one_device = slots_.all.size() == 1;
  }
  return Status();
}

Status Ranks::Load(uint32_t rank, DType dtype, Reduction reduction) const {
  const OnDevice on(slots_.all[slots_.of_rank[rank]].device);
  return LoadFused(dtype, reduction);
}

Status Ranks::CheckReach(uint32_t rank, const std::byte* data, int64_t bytes) const {
  const size_t slot = slots_.of_rank[rank];
  return Named(peer_memory_->CheckReach(slot, data, bytes * slots_.all[slot].num_ranks));
}

Status Ranks::Run(uint32_t rank, const Call& call, cudaStream_t stream) {
  const size_t at = slots_.of_rank[rank];
  const Slot& slot = slots_.all[at];
  Arguments arguments = arguments_.at(at);
  arguments.bytes = call.bytes;
  arguments.data = call.data;
  arguments.stride = call.bytes;
  arguments.delays = call.delays;
  arguments.timeout = static_cast<uint64_t>(call.deadline * 1e9);
  arguments.no_sum = NoSum(call.dtype);
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
  const Status published = PublishClocks();
  if (!published.ok()) return published;
  std::vector<SlotClocks> clocks;
  for (size_t slot = 0; slot < slots_.all.size(); ++slot) {
    Result<SlotClocks> read = ClocksOf(slot);
    if (!read.ok()) return read.status();
    clocks.push_back(std::move(read.value()));
  }
  int64_t error = 0;  // of a difference of two slots' times
  for (const SlotClocks& its : clocks) error = std::max(error, 2 * its.clock.error);
  const size_t words = clocks[0].words.size() / kKeptCalls;
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < kKeptCalls; ++i) {
    if (clocks[0].words[i * words] > recorded_) calls.push_back(clocks[0].words[i * words]);
  }
  std::sort(calls.begin(), calls.end());
  for (const uint64_t call : calls) {
    const std::vector<uint64_t> merged = MergeClocks(*program_, slots_, call, clocks);
    std::optional<CallRecord> record = merged.empty() ? std::nullopt : ReadClocks(merged.data(), error, *program_);
    if (!record && call == calls.back()) break;  // it may still run
    if (record) stats_->Record(std::move(*record));
    recorded_ = call;
  }
  return Status();
}

// By how much the clocks of this process's devices differ from the host's. Other hosts' are told when they are asked.
Status Ranks::PublishClocks() {
  if (slots_.all.size() == 1) return Status();
  for (const size_t at : slots_.here) {
    const int device = slots_.all[at].device;
    const Result<HostClock> clock = CompareClock(device, clock_word_);
    if (!clock.ok()) return clock.status();
    const OnDevice on(device);
    BlockHeader* const header = reinterpret_cast<BlockHeader*>(peer_memory_->PeerViewOf(at, at).block);
    const cudaError_t error = cudaMemcpy(&header->clock, &clock.value(), sizeof(HostClock), cudaMemcpyHostToDevice);
    if (error != cudaSuccess) return CudaError("a device's clock", error);
  }
  return Status();
}

Result<SlotClocks> Ranks::ClocksOf(size_t slot) const {
  const size_t from = slots_.all[slot].process == slots_.process ? slot : slots_.here[0];
  const OnDevice on(slots_.all[from].device);
  std::vector<std::byte> head(layout_.head_bytes());
  const cudaError_t error =
      cudaMemcpy(head.data(), peer_memory_->PeerViewOf(from, slot).block, head.size(), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return CudaError("the fused executor's clocks", error);
  BlockHeader header;
  std::memcpy(&header, head.data(), sizeof(header));
  SlotClocks clocks{header.clock, std::vector<uint64_t>(layout_.clock_words())};
  std::memcpy(clocks.words.data(), head.data() + layout_.clocks(), layout_.clock_words() * sizeof(uint64_t));
  return clocks;
}

}  // namespace jaxcomm::fused
