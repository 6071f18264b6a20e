#include "cc/gpu/ffi/memberships.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/ffi/values.h"
#include "cc/gpu/executor/error.h"
#include "cc/gpu/executor/on_device.h"
#include "cc/gpu/nccl/same_call.h"

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

Result<Turn> TakeTurn(int device, std::string_view group, std::string_view messages) {
  Turn turn{};
  turn.part = Find(group, device);
  if (!turn.part) {
    return InvalidArgument("device " + std::to_string(device) + " has not joined group '" + std::string(group) + "'");
  }
  turn.issue = std::unique_lock<std::mutex>(turn.part->issue);
  turn.deadline_s = TheRuntime().deadline_s.load();
  nccl::Communicator& all = *turn.part->communicator;
  if (Status status = all.Check(); !status.ok()) {
    return Status(status.code(), "group '" + std::string(group) + "' has failed: " + status.message() +
                                     "\n  Cure: start the job's processes anew.");
  }
  if (all.ranks() == 1) return turn;
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto mine = TheRuntime().messages.find({std::string(messages), all.ranks(), all.rank()});
  if (mine == TheRuntime().messages.end()) {
    return InvalidArgument("messages: " + std::string(messages) + " are not registered for rank " +
                           std::to_string(all.rank()) + " of " + std::to_string(all.ranks()));
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

// Makes a device a rank of a group. `board`: a file of this host's ranks.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                                         const char* id, const char* board, char* error, int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  if (!found.ok()) return Answer(found.status(), error, size);
  nccl::Membership membership{ranks, rank, {}};
  std::memcpy(membership.id.bytes, id, sizeof(membership.id.bytes));
  auto part = std::make_shared<Part>();
  Result<std::unique_ptr<nccl::Board>> opened = nccl::Board::Open(board, ranks);
  if (!opened.ok()) return Answer(opened.status(), error, size);
  part->board = std::move(opened.value());
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return Answer(CudaError("choosing the device", here.error()), error, size);
  void* memory = nullptr;
  const cudaError_t allocated = cudaMalloc(&memory, (size_t{ranks} + 1) * sizeof(nccl::CallHeader));
  if (allocated != cudaSuccess) return Answer(CudaError("allocating", allocated), error, size);
  part->headers = std::make_unique<OwnMemory>(memory);
  Result<std::unique_ptr<nccl::Communicator>> made =
      nccl::Communicator::Create(*found.value(), membership, part->board.get(), After(TheRuntime().deadline_s.load()));
  if (!made.ok()) return Answer(made.status(), error, size);
  part->communicator = std::move(made.value());
  Add(group, device, std::move(part));
  return 0;
}

// How long joining waits for the others, and a call.
JAXCOMM_EXPORT void jaxcomm_nccl_set_deadline(double seconds) { TheRuntime().deadline_s = seconds; }

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
