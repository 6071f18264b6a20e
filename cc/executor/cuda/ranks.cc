#include "cc/executor/cuda/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

namespace jaxcomm::fused {
namespace {

// More rows than this only shorten the slices.
constexpr uint32_t kMostRows = 64;
constexpr size_t kAlignment = 256;

Status Wrong(const std::string& what, cudaError_t error) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();  // or the next launch would be blamed for it
  return Status(Code::kInternal, what + ": " + cudaGetErrorString(error));
}

// Where each part of a device's memory begins.
struct Layout {
  size_t size = 0;

  size_t Add(size_t bytes) {
    const size_t begin = size;
    size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
};

int64_t HostNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::shared_ptr<Ranks>> Ranks::Make(CallName name, std::shared_ptr<const Program> program,
                                           const std::vector<int>& devices, Stats& stats) {
  if (program->ranks() > kMaxRanks) {
    return InvalidArgument(name.name + " over '" + name.axes + "': " + std::to_string(program->ranks()) +
                           " ranks; the fused executor takes " + std::to_string(kMaxRanks));
  }
  if (devices.size() != program->ranks()) {
    return InvalidArgument(name.name + " over '" + name.axes + "': " + std::to_string(devices.size()) +
                           " devices for a program of " + std::to_string(program->ranks()) + " ranks");
  }
  std::shared_ptr<Ranks> made(new Ranks(std::move(name), std::move(program)));
  const CallName& its = made->name_;
  made->stats_ = stats.Site({its.name, its.axes, its.plan, made->program_->ranks(), its.bytes});
  Status status = made->FindPlaces(devices);
  if (status.ok()) status = made->ConnectPeers();
  if (status.ok()) status = made->Allocate();
  if (!status.ok()) return status;
  return made;
}

Status Ranks::FindPlaces(const std::vector<int>& devices) {
  for (uint32_t rank = 0; rank < devices.size(); ++rank) {
    if (rank == 0 || devices[rank] != devices[rank - 1]) {
      const bool again = std::count(devices.begin(), devices.begin() + rank, devices[rank]) > 0;
      if (again) return InvalidArgument(name_.name + ": ranks of one device must be neighbours");
      places_.push_back({devices[rank], rank, 0, nullptr, nullptr, {}, 0});
    }
    ++places_.back().num_ranks;
    place_of_.push_back(places_.size() - 1);
  }
  // A block for each processor: they must all run at once. All ranks have as many rows.
  rows_ = kMostRows;
  for (const Place& place : places_) {
    int processors = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, place.device);
    if (error != cudaSuccess) return Wrong("GPU " + std::to_string(place.device), error);
    rows_ = std::min(rows_, static_cast<uint32_t>(processors) / place.num_ranks);
  }
  if (rows_ == 0) return InvalidArgument(name_.name + ": a device has fewer processors than ranks");
  return Status();
}

Status Ranks::ConnectPeers() const {
  for (const Place& from : places_) {
    const OnDevice on(from.device);
    for (const Place& to : places_) {
      if (to.device == from.device) continue;
      const std::string who = name_.name + " over '" + name_.axes + "': GPU " + std::to_string(from.device) +
                              " cannot reach the memory of GPU " + std::to_string(to.device);
      int can = 0;
      if (const cudaError_t error = cudaDeviceCanAccessPeer(&can, from.device, to.device)) return Wrong(who, error);
      if (can == 0) {
        return Status(Code::kUnimplemented,
                      who + ".\n  Cure: reduce over GPUs that NVLink or one PCIe root connects, or call jax.lax here.");
      }
      const cudaError_t error = cudaDeviceEnablePeerAccess(to.device, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else if (error != cudaSuccess) {
        return Wrong(who, error);
      }
    }
  }
  return Status();
}

Status Ranks::Allocate() {
  const uint32_t ranks = program_->ranks();
  void* told = nullptr;
  // After the ranks' messages a word for CompareClocks.
  const cudaError_t error =
      cudaHostAlloc(&told, sizeof(Told) * (size_t{ranks} * rows_ + 1), cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess) return Wrong("the fused executor's messages", error);
  told_.reset(static_cast<Told*>(told));
  std::fill(told_.get(), told_.get() + size_t{ranks} * rows_ + 1, Told{});

  const Table table = Table::Build(*program_);
  for (Place& place : places_) {
    const Status status = Fill(place, table);
    if (!status.ok()) return status;
  }
  const size_t words = ControlBytes(table, rows_) / sizeof(uint64_t);
  for (Place& place : places_) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const Place& there = places_[place_of_[rank]];
      place.arguments.peers[rank] = {there.flags + words * (rank - there.first_rank), /*shift=*/0};
    }
    place.arguments.told = told_.get();
    place.arguments.first_rank = place.first_rank;
    place.arguments.rows = rows_;
    place.arguments.one_device = places_.size() == 1;
  }
  return Status();
}

Status Ranks::Fill(Place& place, const Table& table) {
  const auto bytes_of = [](const auto& items) { return items.size() * sizeof(items[0]); };
  Layout layout;
  const size_t rank_tables = layout.Add(bytes_of(table.rank_tables)), ops = layout.Add(bytes_of(table.ops)),
               ranks = layout.Add(bytes_of(table.ranks)), waits = layout.Add(bytes_of(table.waits));
  std::vector<std::byte> image(layout.size);
  const auto put = [&](size_t at, const auto& items) {
    if (!items.empty()) std::memcpy(image.data() + at, items.data(), bytes_of(items));
  };
  put(rank_tables, table.rank_tables);
  put(ops, table.ops);
  put(ranks, table.ranks);
  put(waits, table.waits);
  const uint32_t num_ops = static_cast<uint32_t>(program_->ops().size());
  const size_t flags = layout.Add(ControlBytes(table, rows_) * place.num_ranks);
  const size_t clocks = layout.Add(ClockWords(program_->ranks(), num_ops) * kKeptCalls * sizeof(uint64_t));

  const OnDevice on(place.device);
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, layout.size);
  place.memory.reset(memory);
  if (error == cudaSuccess) error = cudaMemset(memory, 0, layout.size);
  if (error == cudaSuccess) error = cudaMemcpy(memory, image.data(), image.size(), cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return Wrong("the fused executor's tables", error);

  std::byte* const base = static_cast<std::byte*>(memory);
  place.flags = reinterpret_cast<uint64_t*>(base + flags);
  place.arguments.table = table.view();
  place.arguments.table.rank_tables = reinterpret_cast<const RankTable*>(base + rank_tables);
  place.arguments.table.ops = reinterpret_cast<const TableOp*>(base + ops);
  place.arguments.table.ranks = reinterpret_cast<const uint32_t*>(base + ranks);
  place.arguments.table.waits = reinterpret_cast<const Wait*>(base + waits);
  place.arguments.clocks = {reinterpret_cast<uint64_t*>(base + clocks), num_ops};
  return Status();
}

Status Ranks::Load(uint32_t rank, DType dtype, Reduction reduction) const {
  const OnDevice on(places_[place_of_[rank]].device);
  return LoadFused(dtype, reduction);
}

Status Ranks::Run(uint32_t rank, const Call& call, cudaStream_t stream) {
  const Place& place = places_[place_of_[rank]];
  Arguments arguments = place.arguments;
  arguments.bytes = call.bytes;
  arguments.data = call.data;
  arguments.stride = call.bytes;
  arguments.delays = call.delays;
  arguments.timeout = static_cast<uint64_t>(call.deadline * 1e9);
  const OnDevice on(place.device);
  const Status status = LaunchFused(arguments, call.dtype, call.reduction, place.num_ranks, stream);
  // The launch comes first, whatever has failed before: the other devices launch, too, and all must count alike.
  return status.ok() ? Check() : status;
}

Status Ranks::Check() {
  std::lock_guard<std::mutex> lock(mutex_);
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
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t words = ClockWords(program_->ranks(), places_[0].arguments.clocks.num_ops);
  std::vector<std::vector<uint64_t>> clocks;
  for (const Place& place : places_) {
    const OnDevice on(place.device);
    std::vector<uint64_t>& all = clocks.emplace_back(words * kKeptCalls);
    const cudaError_t error =
        cudaMemcpy(all.data(), place.arguments.clocks.base, all.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) return Wrong("the fused executor's clocks", error);
  }
  if (places_.size() > 1) {
    const Status status = CompareClocks();
    if (!status.ok()) return status;
  }
  std::vector<uint64_t> calls;
  for (size_t i = 0; i < kKeptCalls; ++i) {
    if (clocks[0][i * words] > recorded_) calls.push_back(clocks[0][i * words]);
  }
  std::sort(calls.begin(), calls.end());
  for (const uint64_t call : calls) {
    const std::vector<uint64_t> merged = Merged(call, clocks);
    std::optional<CallRecord> record = merged.empty() ? std::nullopt : ReadClocks(merged.data(), *program_);
    if (!record && call == calls.back()) break;  // it may still run
    if (record) stats_->Record(std::move(*record));
    recorded_ = call;
  }
  return Status();
}

// By the host's clock; empty if a device has not begun the call, or has forgotten it.
std::vector<uint64_t> Ranks::Merged(uint64_t call, const std::vector<std::vector<uint64_t>>& clocks) const {
  const uint32_t ranks = program_->ranks();
  const size_t words = ClockWords(ranks, places_[0].arguments.clocks.num_ops), at = call % kKeptCalls * words;
  for (const std::vector<uint64_t>& its : clocks) {
    if (its[at] != call) return {};
  }
  std::vector<uint64_t> merged(words);
  merged[0] = call;
  const auto take = [&](size_t word, uint32_t rank) {
    const uint64_t then = clocks[place_of_[rank]][at + word];
    merged[word] = then == 0 ? 0 : then + static_cast<uint64_t>(places_[place_of_[rank]].offset);
  };
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    take(1 + rank, rank);
    take(1 + ranks + rank, rank);
  }
  for (size_t op = 0; op < program_->ops().size(); ++op) take(1 + 2 * ranks + op, program_->ops()[op].rank);
  return merged;
}

// The clocks of several devices agree on nothing. The shortest of some readings is the least wrong, by half its length.
Status Ranks::CompareClocks() {
  constexpr int kReadings = 5;
  uint64_t* const device_now = &told_[size_t{program_->ranks()} * rows_].call;
  for (Place& place : places_) {
    const OnDevice on(place.device);
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return Wrong("a device's clock", error);
    int64_t shortest = INT64_MAX;
    for (int i = 0; i < kReadings && error == cudaSuccess; ++i) {
      const int64_t before = HostNow();
      error = LaunchReadClock(device_now, stream);
      if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
      const int64_t after = HostNow();
      if (after - before >= shortest) continue;
      shortest = after - before;
      place.offset = before + shortest / 2 - static_cast<int64_t>(*device_now);
    }
    cudaStreamDestroy(stream);
    if (error != cudaSuccess) return Wrong("a device's clock", error);
  }
  return Status();
}

}  // namespace jaxcomm::fused
