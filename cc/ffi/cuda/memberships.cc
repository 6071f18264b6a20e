#include "cc/ffi/cuda/memberships.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/executor/cuda/error.h"
#include "cc/executor/cuda/on_device.h"
#include "cc/ffi/values.h"

namespace jaxcomm {
namespace {

using nccl::After;

// Live until the process ends: XLA's threads may still call when static destructors run.
struct Runtime {
  std::mutex mutex;
  std::map<std::tuple<std::string, uint32_t, uint32_t>, std::shared_ptr<const Messages>> messages;  // name, ranks, rank
  std::map<std::pair<std::string, int>, std::shared_ptr<Part>> parts;                               // group, device
  std::atomic<double> deadline_s{60.0};
};

Runtime& TheRuntime() {
  static Runtime* runtime = std::make_unique<Runtime>().release();
  return *runtime;
}

// None: the device has not joined.
std::shared_ptr<Part> Find(std::string_view group, int device) {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto found = TheRuntime().parts.find({std::string(group), device});
  return found == TheRuntime().parts.end() ? nullptr : found->second;
}

// A group's own deadline, or the process's where it has none.
double Deadline(double own) { return own > 0 ? own : TheRuntime().deadline_s.load(); }

Status MakeStreams(size_t count, std::vector<std::unique_ptr<OwnStream>>& streams) {
  while (streams.size() < count) {
    cudaStream_t stream = nullptr;
    const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return CudaError("making a stream", error);
    streams.push_back(std::make_unique<OwnStream>(stream));
  }
  return Status();
}

// What was there ends without the lock.
void Add(const char* group, int device, std::shared_ptr<Part> part) {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  std::swap(TheRuntime().parts[{group, device}], part);
}

// 0, or 1 and the message, cut to what fits.
int64_t Answer(const Status& status, char* error, int64_t size) {
  if (status.ok()) return 0;
  std::snprintf(error, static_cast<size_t>(size), "%s", status.message().c_str());
  return 1;
}

}  // namespace

Status CudaError(const char* what, cudaError_t error) {
  return fused::CudaError(std::string("messages: ") + what, error);
}

Result<Hold> TakePart(int device, std::string_view group) {
  Hold hold{};
  hold.device = device;
  hold.part = Find(group, device);
  if (!hold.part) {
    return InvalidArgument("device " + std::to_string(device) + " has not joined group '" + std::string(group) + "'");
  }
  hold.issue = std::unique_lock<std::mutex>(hold.part->issue);
  hold.deadline_s = Deadline(hold.part->deadline_s);
  if (Status status = hold.part->carrier().Check(); !status.ok()) {
    return Status(status.code(), "group '" + std::string(group) + "' has failed: " + status.message());
  }
  return hold;
}

Result<Turn> TakeTurn(int device, std::string_view group, int64_t iteration, std::string_view messages) {
  Result<Hold> hold = TakePart(device, group);
  if (!hold.ok()) return hold.status();
  Turn turn{std::move(hold.value()), {}, nullptr};
  const nccl::Communicators* const ours = turn.part->communicators.get();
  const auto period = static_cast<int64_t>(ours != nullptr ? ours->num_partitions() : 0);
  if (iteration >= period) {
    return InvalidArgument("messages: iteration " + std::to_string(iteration) + " of " + std::to_string(period) +
                           " in the period");
  }
  turn.members = iteration < 0 ? turn.part->carrier().everybody() : ours->members(static_cast<size_t>(iteration));
  if (turn.members.size() == 1) return turn;
  const auto at = std::find(turn.members.begin(), turn.members.end(), turn.part->carrier().rank());
  const auto rank = static_cast<uint32_t>(at - turn.members.begin());
  const auto ranks = static_cast<uint32_t>(turn.members.size());
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto mine = TheRuntime().messages.find({std::string(messages), ranks, rank});
  if (mine == TheRuntime().messages.end()) {
    return InvalidArgument("messages: " + std::string(messages) + " are not registered for rank " +
                           std::to_string(rank) + " of " + std::to_string(ranks));
  }
  turn.messages = mine->second;
  return turn;
}

// NCCL's version, such as 23201; 0: there is none, and `error` says why.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_version(const char* path, char* error, int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  return Answer(found.status(), error, size) == 0 ? found.value()->version : 0;
}

// Fills in the id of a new group, of 128 bytes.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_id(const char* path, char* id, char* error, int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  if (!found.ok()) return Answer(found.status(), error, size);
  nccl::Id made;
  const nccl::Outcome outcome = found.value()->GetUniqueId(&made);
  if (outcome != nccl::kSuccess) return Answer(found.value()->Error("making an id", outcome, nullptr), error, size);
  std::memcpy(id, made.bytes, sizeof(made.bytes));
  return 0;
}

// Makes a device a rank of a group. `modules` are lines, one per rail, and `ids` their ids one after the other.
// `partitions` holds the group of each rank for so many iterations. `board`: a file of this host's ranks. `deadline_s`
// 0: the process's, now and later.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                                         const char* modules, const char* ids, const uint32_t* partitions,
                                         uint32_t num_partitions, const char* board, double deadline_s, char* error,
                                         int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  if (!found.ok()) return Answer(found.status(), error, size);
  nccl::Membership membership{ranks, rank, {}, {}};
  std::istringstream lines(modules);
  for (std::string module; std::getline(lines, module);) {
    nccl::RailId rail{module, {}};
    std::memcpy(rail.id.bytes, ids + membership.rails.size() * sizeof(rail.id.bytes), sizeof(rail.id.bytes));
    membership.rails.push_back(std::move(rail));
  }
  for (uint32_t i = 0; i < num_partitions; ++i) {
    membership.partitions.emplace_back(partitions + i * ranks, partitions + (i + 1) * ranks);
  }
  auto part = std::make_shared<Part>();
  part->deadline_s = deadline_s;
  Result<std::unique_ptr<nccl::Board>> opened = nccl::Board::Open(board, ranks);
  if (!opened.ok()) return Answer(opened.status(), error, size);
  part->board = std::move(opened.value());
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return Answer(CudaError("choosing the device", here.error()), error, size);
  Status status = MakeStreams(membership.rails.size() - 1, part->streams);
  if (!status.ok()) return Answer(status, error, size);
  Result<std::unique_ptr<nccl::Communicators>> made = nccl::Communicators::Create(
      *found.value(), std::move(membership), part->board.get(), After(Deadline(deadline_s)));
  if (!made.ok()) return Answer(made.status(), error, size);
  part->communicators = std::move(made.value());
  Add(group, device, std::move(part));
  return 0;
}

// The same by the communicators that XLA lends. Waits for nobody.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_borrow(const char* path, const char* group, int device, uint32_t ranks,
                                           uint32_t rank, const char* board, char* error, int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  if (!found.ok()) return Answer(found.status(), error, size);
  auto part = std::make_shared<Part>();
  part->deadline_s = 0;
  Result<std::unique_ptr<nccl::Board>> opened = nccl::Board::Open(board, ranks);
  if (!opened.ok()) return Answer(opened.status(), error, size);
  part->board = std::move(opened.value());
  part->board->Arrive(rank, {0, 0});
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return Answer(CudaError("choosing the device", here.error()), error, size);
  void* memory = nullptr;
  const cudaError_t allocated = cudaMalloc(&memory, (ranks + 1) * sizeof(uint32_t));
  if (allocated != cudaSuccess) return Answer(CudaError("allocating", allocated), error, size);
  part->numbers = std::make_unique<OwnMemory>(memory);
  part->loan = std::make_unique<nccl::Loan>(*found.value(), rank, ranks);
  Add(group, device, std::move(part));
  return 0;
}

// How long a call waits, in groups that have no deadline of their own.
JAXCOMM_EXPORT void jaxcomm_nccl_set_deadline(double seconds) { TheRuntime().deadline_s = seconds; }

// Goes on without some ranks; those that remain are numbered anew, in their order. `board`: another file.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_without(const char* group, int device, const uint32_t* gone, uint32_t num_gone,
                                            const char* board, char* error, int64_t size) {
  const std::shared_ptr<Part> part = Find(group, device);
  if (!part) return Answer(InvalidArgument("the device has not joined it"), error, size);
  const std::lock_guard<std::mutex> lock(part->issue);
  if (!part->communicators) return Answer(InvalidArgument("its communicators are XLA's"), error, size);
  const std::vector<uint32_t> all = part->communicators->everybody(), leaving(gone, gone + num_gone);
  Result<std::unique_ptr<nccl::Board>> opened = nccl::Board::Open(board, static_cast<uint32_t>(all.size()));
  if (!opened.ok()) return Answer(opened.status(), error, size);
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return Answer(CudaError("choosing the device", here.error()), error, size);
  Result<std::unique_ptr<nccl::Communicators>> made =
      part->communicators->Without(leaving, opened.value().get(), After(Deadline(part->deadline_s)));
  if (!made.ok()) return Answer(made.status(), error, size);
  part->communicators = std::move(made.value());  // before the board that they look at
  part->board = std::move(opened.value());
  part->calls = 0;
  return 0;
}

// Ends a device's part in a group, after the call that it may be in.
JAXCOMM_EXPORT void jaxcomm_nccl_leave(const char* group, int device) {
  const std::shared_ptr<Part> gone = Find(group, device);
  if (!gone) return;
  const std::lock_guard<std::mutex> turn(gone->issue);
  gone->carrier().Fail(Status(Code::kInternal, "the device has left"));
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().parts.erase({group, device});
}

// Hands in the messages of one rank, under the schedule's name.
JAXCOMM_EXPORT int64_t jaxcomm_register_messages(const char* name, const char* words, int64_t bytes, char* error,
                                                 int64_t size) {
  std::vector<uint32_t> aligned(static_cast<size_t>(bytes) / sizeof(uint32_t));
  std::memcpy(aligned.data(), words, aligned.size() * sizeof(uint32_t));
  Result<Messages> decoded = Messages::Decode(aligned.data(), aligned.size());
  if (!decoded.ok()) return Answer(decoded.status(), error, size);
  const uint32_t ranks = decoded.value().ranks(), rank = decoded.value().rank();
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().messages[{name, ranks, rank}] = std::make_shared<const Messages>(std::move(decoded.value()));
  return 0;
}

}  // namespace jaxcomm
