#include "cc/gpu/ffi/memberships.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
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
  std::map<std::pair<std::string, int>, std::shared_ptr<Membership>> memberships;                   // group, device
  std::atomic<double> deadline_s{60.0};
};

Runtime& TheRuntime() {
  static Runtime* runtime = std::make_unique<Runtime>().release();
  return *runtime;
}

// None: the device has not joined.
std::shared_ptr<Membership> Find(std::string_view group, int device) {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto found = TheRuntime().memberships.find({std::string(group), device});
  return found == TheRuntime().memberships.end() ? nullptr : found->second;
}

// What was there ends without the lock.
void Add(const char* group, int device, std::shared_ptr<Membership> membership) {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  std::swap(TheRuntime().memberships[{group, device}], membership);
}

struct Joining {
  const char* group;
  int device;
  nccl::GroupRank rank;
};

// Makes a device a rank of a group. `path`: of a file of this host's ranks.
Status Join(const nccl::Library& library, const Joining& joining, const char* path) {
  auto membership = std::make_shared<Membership>();
  Result<std::unique_ptr<nccl::ArrivalTable>> opened = nccl::ArrivalTable::Open(path, joining.rank.ranks);
  if (!opened.ok()) return opened.status();
  membership->arrivals = std::move(opened.value());
  const OnDevice here(joining.device);
  if (here.error() != cudaSuccess) return CudaError("choosing the device", here.error());
  void* memory = nullptr;
  const cudaError_t allocated = cudaMalloc(&memory, (size_t{joining.rank.ranks} + 1) * sizeof(nccl::CallHeader));
  if (allocated != cudaSuccess) return CudaError("allocating", allocated);
  membership->headers = std::make_unique<OwnMemory>(memory);
  Result<std::unique_ptr<nccl::Communicator>> made = nccl::Communicator::Create(
      library, joining.rank, membership->arrivals.get(), After(TheRuntime().deadline_s.load()));
  if (!made.ok()) return made.status();
  membership->communicator = std::move(made.value());
  Add(joining.group, joining.device, std::move(membership));
  return Status();
}

}  // namespace

Status CudaError(const char* operation, cudaError_t error) {
  return fused::CudaError(std::string("messages: ") + operation, error);
}

Result<NcclCall> BeginNcclCall(int device, std::string_view group, std::string_view messages) {
  NcclCall call{};
  call.membership = Find(group, device);
  if (!call.membership) {
    return InvalidArgument("device " + std::to_string(device) + " has not joined group '" + std::string(group) + "'");
  }
  call.lock = std::unique_lock<std::mutex>(call.membership->mutex);
  call.deadline_s = TheRuntime().deadline_s.load();
  nccl::Communicator& all = *call.membership->communicator;
  if (Status status = all.Check(); !status.ok()) {
    return Status(status.code(),
                  "group '" + std::string(group) + "' has failed: " + status.message() +
                      "\n  Cure: start the job's processes anew.",
                  status.record());
  }
  if (all.ranks() == 1) return call;
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto mine = TheRuntime().messages.find({std::string(messages), all.ranks(), all.rank()});
  if (mine == TheRuntime().messages.end()) {
    return InvalidArgument("messages: " + std::string(messages) + " are not registered for rank " +
                           std::to_string(all.rank()) + " of " + std::to_string(all.ranks()));
  }
  call.messages = mine->second;
  return call;
}

// NCCL's version, such as 23201; an error says why there is none.
JAXCOMM_EXPORT int jaxcomm_nccl_version(const char* path, int* version, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<const nccl::Library*> found = nccl::Library::Open(path);
    if (found.ok()) *version = found.value()->version;
    return found.status();
  });
}

// Fills in the id of a new group, of 128 bytes.
JAXCOMM_EXPORT int jaxcomm_nccl_id(const char* path, char* id, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<const nccl::Library*> found = nccl::Library::Open(path);
    if (!found.ok()) return found.status();
    nccl::Id made;
    const nccl::Outcome outcome = found.value()->GetUniqueId(&made);
    if (outcome != nccl::kSuccess) return found.value()->Error("making an id", outcome, nullptr);
    std::memcpy(id, made.bytes, sizeof(made.bytes));
    return Status();
  });
}

JAXCOMM_EXPORT int jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                                     const char* id, const char* arrivals, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<const nccl::Library*> found = nccl::Library::Open(path);
    if (!found.ok()) return found.status();
    Joining joining{group, device, {ranks, rank, {}}};
    std::memcpy(joining.rank.id.bytes, id, sizeof(joining.rank.id.bytes));
    return Join(*found.value(), joining, arrivals);
  });
}

// How long joining waits for the others, and a call.
JAXCOMM_EXPORT int jaxcomm_nccl_set_deadline(double seconds, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { TheRuntime().deadline_s = seconds; });
}

// Registers the messages of one rank, under the schedule's name.
JAXCOMM_EXPORT int jaxcomm_register_messages(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                             int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    if (!words.ok()) return words.status();
    Result<Messages> decoded = Messages::Decode(words.value().data(), words.value().size());
    if (!decoded.ok()) return decoded.status();
    const uint32_t ranks = decoded.value().ranks(), rank = decoded.value().rank();
    std::lock_guard<std::mutex> lock(TheRuntime().mutex);
    TheRuntime().messages[{name, ranks, rank}] = std::make_shared<const Messages>(std::move(decoded.value()));
    return Status();
  });
}

}  // namespace jaxcomm
