#include "cc/executor/cuda/virtual_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace jaxcomm::fused {
namespace {

// More rows than this only shorten the slices.
constexpr uint32_t kMostRows = 64;

Status Wrong(const char* what, cudaError_t error) {
  return error == cudaSuccess ? Status()
                              : Status(Code::kInternal, std::string(what) + ": " + cudaGetErrorString(error));
}

// Device memory with these contents, or zeroed.
template <typename Memory>
Status Upload(Memory& memory, const void* from, size_t bytes) {
  void* at = nullptr;
  cudaError_t error = cudaMalloc(&at, std::max<size_t>(bytes, 1));
  memory.reset(at);
  if (error == cudaSuccess) {
    error = from != nullptr ? cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice) : cudaMemset(at, 0, bytes);
  }
  return Wrong("the fused executor's tables", error);
}

template <typename Memory, typename T>
Status Upload(Memory& memory, const std::vector<T>& items) {
  return Upload(memory, items.data(), items.size() * sizeof(T));
}

}  // namespace

Result<std::shared_ptr<VirtualRanks>> VirtualRanks::Make(CallName name, std::shared_ptr<const Program> program,
                                                         Stats& stats) {
  if (program->ranks() > kMaxRanks) {
    return InvalidArgument(name.name + ": " + std::to_string(program->ranks()) + " ranks; the fused executor takes " +
                           std::to_string(kMaxRanks));
  }
  std::shared_ptr<VirtualRanks> made(new VirtualRanks(std::move(name), std::move(program)));
  const CallName& its = made->name_;
  made->stats_ = stats.Site({its.name, its.axes, its.plan, made->program_->ranks(), its.bytes});
  const Status status = made->Allocate();
  if (!status.ok()) return status;
  return made;
}

Status VirtualRanks::Allocate() {
  const uint32_t ranks = program_->ranks();
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return Wrong("the fused executor's device", error);
  // A block for each processor: they must all run at once.
  const uint32_t rows = std::min(kMostRows, static_cast<uint32_t>(processors) / ranks);
  if (rows == 0) return InvalidArgument("this device has fewer processors than the call has ranks");

  const Table table = Table::Build(*program_);
  const uint32_t num_ops = static_cast<uint32_t>(program_->ops().size());
  const size_t control = ControlBytes(table, rows);
  for (const Status& status :
       {Upload(rank_tables_, table.rank_tables), Upload(ops_, table.ops), Upload(ranks_, table.ranks),
        Upload(waits_, table.waits), Upload(control_, nullptr, control * ranks),
        Upload(clocks_, nullptr, ClockWords(ranks, num_ops) * kKeptCalls * sizeof(uint64_t))}) {
    if (!status.ok()) return status;
  }
  void* told = nullptr;
  error = cudaHostAlloc(&told, sizeof(Told) * ranks * rows, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess) return Wrong("the fused executor's messages", error);
  told_.reset(static_cast<Told*>(told));
  std::fill(told_.get(), told_.get() + size_t{ranks} * rows, Told{});

  arguments_.table = table.view();
  arguments_.table.rank_tables = static_cast<const RankTable*>(rank_tables_.get());
  arguments_.table.ops = static_cast<const TableOp*>(ops_.get());
  arguments_.table.ranks = static_cast<const uint32_t*>(ranks_.get());
  arguments_.table.waits = static_cast<const Wait*>(waits_.get());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    arguments_.peers[rank] = {reinterpret_cast<uint64_t*>(static_cast<std::byte*>(control_.get()) + control * rank),
                              /*shift=*/0};
  }
  arguments_.told = told_.get();
  arguments_.clocks = {static_cast<uint64_t*>(clocks_.get()), num_ops};
  arguments_.first_rank = 0;
  arguments_.rows = rows;
  arguments_.one_device = true;
  return Status();
}

Status VirtualRanks::Run(const Call& call, cudaStream_t stream) {
  const Status before = Check();
  if (!before.ok()) return before;
  std::lock_guard<std::mutex> lock(mutex_);
  Arguments arguments = arguments_;
  arguments.bytes = call.bytes / program_->ranks();
  arguments.data = call.data;
  arguments.stride = arguments.bytes;
  arguments.delays = call.delays;
  arguments.timeout = static_cast<uint64_t>(call.deadline * 1e9);
  return LaunchFused(arguments, call.dtype, call.reduction, program_->ranks(), stream);
}

Status VirtualRanks::Check() {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t count = size_t{program_->ranks()} * arguments_.rows;
  uint64_t failed = 0;
  for (size_t i = 0; i < count; ++i) {
    failed = std::max(failed, __atomic_load_n(&told_[i].call, __ATOMIC_ACQUIRE));
  }
  if (failed <= checked_) return Status();
  checked_ = failed;
  stats_->RecordFailure();
  return Explain(name_, failed, program_->ranks(), arguments_.rows, told_.get());
}

Status VirtualRanks::RecordCalls() {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t words = ClockWords(program_->ranks(), arguments_.clocks.num_ops);
  std::vector<uint64_t> all(words * kKeptCalls);
  const cudaError_t error = cudaMemcpy(all.data(), clocks_.get(), all.size() * sizeof(uint64_t), cudaMemcpyDefault);
  if (error != cudaSuccess) return Wrong("the fused executor's clocks", error);
  std::vector<const uint64_t*> calls;
  for (size_t i = 0; i < kKeptCalls; ++i) {
    if (all[i * words] > recorded_) calls.push_back(&all[i * words]);
  }
  std::sort(calls.begin(), calls.end(), [](const uint64_t* a, const uint64_t* b) { return *a < *b; });
  for (const uint64_t* call : calls) {
    std::optional<CallRecord> record = ReadClocks(call, *program_);
    if (record) stats_->Record(std::move(*record));
    recorded_ = *call;
  }
  return Status();
}

}  // namespace jaxcomm::fused
