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

// More rows than this only shorten the slices.
constexpr uint32_t kMostRows = 64;

// XLA's kernels, which another stream may run meanwhile, keep one of so many processors.
constexpr uint32_t kSpared = 8;

}  // namespace

Ranks::Ranks(CallName name, std::shared_ptr<const Program> program, Places places, std::unique_ptr<Meeting> meeting)
    : name_(std::move(name)),
      program_(std::move(program)),
      places_(std::move(places)),
      table_(Table::Build(*program_)),
      layout_(*program_, table_),
      meeting_(std::move(meeting)) {}

Result<std::shared_ptr<Ranks>> Ranks::Make(CallName name, std::shared_ptr<const Program> program, Places places,
                                           std::unique_ptr<Meeting> meeting, Stats& stats) {
  std::shared_ptr<Ranks> made(new Ranks(std::move(name), std::move(program), std::move(places), std::move(meeting)));
  Status status = made->CheckSize();
  // Other processes wait for this one's outcome, whatever it is.
  if (status.ok()) status = made->meeting_->Meet(made->Allocate());
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
  if (places_.of_rank.size() != ranks) {
    return InvalidArgument(std::to_string(places_.of_rank.size()) + " devices for a program of " +
                           std::to_string(ranks) + " ranks");
  }
  return Status();
}

Status Ranks::Allocate() {
  // After the ranks' messages a word for the clocks.
  const size_t messages = size_t{program_->ranks()} * kMostRows + 1;
  void* told = nullptr;
  const cudaError_t error = cudaHostAlloc(&told, sizeof(Told) * messages, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess) return CudaError("memory for the kernel's messages", error);
  told_.reset(static_cast<Told*>(told));
  std::fill_n(told_.get(), messages, Told{});
  clock_word_ = &told_[messages - 1].call;
  for (const size_t place : places_.here) {
    const Status status = Fill(place);
    if (!status.ok()) return status;
  }
  return Status();
}

Status Ranks::Fill(size_t at) {
  const Place& place = places_.all[at];
  const std::string who = "GPU " + std::to_string(place.device);
  // A block for each processor that is not spared: they must all run at once.
  int processors = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, place.device);
  if (error != cudaSuccess) return CudaError(who, error);
  const uint32_t used = static_cast<uint32_t>(processors) - static_cast<uint32_t>(processors) / kSpared;
  Card card{std::min(kMostRows, used / place.num_ranks), {}};
  if (card.rows == 0) return InvalidArgument(who + " has fewer processors than ranks");
  if (places_.all.size() > 1) {
    const Result<HostClock> clock = CompareClock(place.device, clock_word_);
    if (!clock.ok()) return clock.status();
    card.clock = clock.value();
  }
  const Result<std::byte*> block = meeting_->Allocate(at, layout_.Bytes(place.num_ranks, card.rows));
  if (!block.ok()) return block.status();
  const OnDevice on(place.device);
  const Result<TableView> tables = layout_.Fill(block.value(), table_, place.num_ranks, card);
  if (tables.ok()) arguments_[at].table = tables.value();
  return tables.status();
}

// All ranks have as many rows: those of the place that has the fewest.
Status Ranks::Connect() {
  const size_t mine = places_.here[0];
  const OnDevice on(places_.all[mine].device);
  rows_ = kMostRows;
  for (size_t place = 0; place < places_.all.size(); ++place) {
    Card card;
    const cudaError_t error = cudaMemcpy(&card, meeting_->See(mine, place).block, sizeof(card), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) return CudaError("the fused executor's cards", error);
    rows_ = std::min(rows_, card.rows);
  }
  for (auto& [at, arguments] : arguments_) {
    for (uint32_t rank = 0; rank < program_->ranks(); ++rank) {
      const size_t there = places_.of_rank[rank];
      const View view = meeting_->See(at, there);
      arguments.peers[rank] = {layout_.FlagsOf(view.block, rank - places_.all[there].first_rank, rows_), view.origin};
    }
    const View own = meeting_->See(at, at);
    arguments.origin = own.origin;
    arguments.told = told_.get();
    arguments.clocks = {reinterpret_cast<uint64_t*>(own.block + layout_.clocks()),
                        static_cast<uint32_t>(program_->ops().size())};
    arguments.first_rank = places_.all[at].first_rank;
    arguments.rows = rows_;
    arguments.one_device = places_.all.size() == 1;
  }
  return Status();
}

Status Ranks::Load(uint32_t rank, DType dtype, Reduction reduction) const {
  const OnDevice on(places_.all[places_.of_rank[rank]].device);
  return LoadFused(dtype, reduction);
}

Status Ranks::CheckReach(uint32_t rank, const std::byte* data, int64_t bytes) const {
  const size_t place = places_.of_rank[rank];
  return Named(meeting_->CheckReach(place, data, bytes * places_.all[place].num_ranks));
}

Status Ranks::Run(uint32_t rank, const Call& call, cudaStream_t stream) {
  const size_t at = places_.of_rank[rank];
  const Place& place = places_.all[at];
  Arguments arguments = arguments_.at(at);
  arguments.bytes = call.bytes;
  arguments.data = call.data;
  arguments.stride = call.bytes;
  arguments.delays = call.delays;
  arguments.timeout = static_cast<uint64_t>(call.deadline * 1e9);
  arguments.no_sum = NoSum(call.dtype);
  const OnDevice on(place.device);
  return LaunchFused(arguments, call.dtype, call.reduction, place.num_ranks, stream);
}

Status Ranks::Check() {
  std::lock_guard<std::mutex> lock(checking_);
  std::vector<Told> told(size_t{program_->ranks()} * rows_);
  uint64_t failed = 0;
  for (size_t i = 0; i < told.size(); ++i) {
    told[i].call = __atomic_load_n(&told_[i].call, __ATOMIC_ACQUIRE);
    if (told[i].call > checked_) told[i].failure = told_[i].failure;
    failed = std::max(failed, told[i].call);
  }
  if (failed <= checked_) return Status();
  checked_ = failed;
  stats_->RecordFailure();
  return Explain(name_, failed, program_->ranks(), rows_, told.data());
}

Status Ranks::RecordCalls() {
  std::lock_guard<std::mutex> lock(recording_);
  const Status told = TellClocks();
  if (!told.ok()) return told;
  std::vector<PlaceClocks> clocks;
  for (size_t place = 0; place < places_.all.size(); ++place) {
    Result<PlaceClocks> read = ClocksOf(place);
    if (!read.ok()) return read.status();
    clocks.push_back(std::move(read.value()));
  }
  int64_t error = 0;  // of a difference of two places' times
  for (const PlaceClocks& its : clocks) error = std::max(error, 2 * its.clock.error);
  const size_t words = clocks[0].words.size() / kKeptCalls;
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < kKeptCalls; ++i) {
    if (clocks[0].words[i * words] > recorded_) calls.push_back(clocks[0].words[i * words]);
  }
  std::sort(calls.begin(), calls.end());
  for (const uint64_t call : calls) {
    const std::vector<uint64_t> merged = MergeClocks(*program_, places_, call, clocks);
    std::optional<CallRecord> record = merged.empty() ? std::nullopt : ReadClocks(merged.data(), error, *program_);
    if (!record && call == calls.back()) break;  // it may still run
    if (record) stats_->Record(std::move(*record));
    recorded_ = call;
  }
  return Status();
}

// By how much the clocks of this process's devices differ from the host's. Other hosts' are told when they are asked.
Status Ranks::TellClocks() {
  if (places_.all.size() == 1) return Status();
  for (const size_t at : places_.here) {
    const int device = places_.all[at].device;
    const Result<HostClock> clock = CompareClock(device, clock_word_);
    if (!clock.ok()) return clock.status();
    const OnDevice on(device);
    Card* const card = reinterpret_cast<Card*>(meeting_->See(at, at).block);
    const cudaError_t error = cudaMemcpy(&card->clock, &clock.value(), sizeof(HostClock), cudaMemcpyHostToDevice);
    if (error != cudaSuccess) return CudaError("a device's clock", error);
  }
  return Status();
}

Result<PlaceClocks> Ranks::ClocksOf(size_t place) const {
  const size_t from = places_.all[place].process == places_.process ? place : places_.here[0];
  const OnDevice on(places_.all[from].device);
  std::vector<std::byte> head(layout_.head_bytes());
  const cudaError_t error =
      cudaMemcpy(head.data(), meeting_->See(from, place).block, head.size(), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return CudaError("the fused executor's clocks", error);
  Card card;
  std::memcpy(&card, head.data(), sizeof(card));
  PlaceClocks clocks{card.clock, std::vector<uint64_t>(layout_.clock_words())};
  std::memcpy(clocks.words.data(), head.data() + layout_.clocks(), layout_.clock_words() * sizeof(uint64_t));
  return clocks;
}

}  // namespace jaxcomm::fused
