#include "cc/ffi/cuda/groups.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/ffi/values.h"

namespace jaxcomm {
namespace {

using nccl::Clock;

// Live until the process ends: XLA's threads may still call when static destructors run.
struct Runtime {
  std::mutex mutex;
  std::map<std::pair<std::string, uint32_t>, std::shared_ptr<const Messages>> messages;  // by name and rank
  std::map<std::pair<std::string, int>, std::shared_ptr<Part>> parts;                    // by group and device
};

Runtime& TheRuntime() {
  static Runtime* runtime = std::make_unique<Runtime>().release();
  return *runtime;
}

// 0, or 1 and the message, cut to what fits.
int64_t Answer(const Status& status, char* error, int64_t size) {
  if (status.ok()) return 0;
  std::snprintf(error, static_cast<size_t>(size), "%s", status.message().c_str());
  return 1;
}

}  // namespace

Result<MessageCall> FindCall(int device, std::string_view group, int64_t iteration, std::string_view messages) {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto part = TheRuntime().parts.find({std::string(group), device});
  if (part == TheRuntime().parts.end()) {
    return InvalidArgument("messages: device " + std::to_string(device) + " has not joined group '" +
                           std::string(group) + "'");
  }
  nccl::Communicators& all = *part->second->communicators;
  if (Status status = all.Check(); !status.ok()) return status;
  uint32_t rank = all.rank(), ranks = all.ranks();
  if (iteration >= 0) {
    if (static_cast<size_t>(iteration) >= all.num_partitions()) {
      return InvalidArgument("messages: iteration " + std::to_string(iteration) + " of " +
                             std::to_string(all.num_partitions()) + " in the period");
    }
    const std::vector<uint32_t> members = all.members(static_cast<size_t>(iteration));
    rank = static_cast<uint32_t>(std::find(members.begin(), members.end(), rank) - members.begin());
    ranks = static_cast<uint32_t>(members.size());
  }
  const auto mine = TheRuntime().messages.find({std::string(messages), rank});
  if (mine == TheRuntime().messages.end()) {
    return InvalidArgument("messages: " + std::string(messages) + " are not registered for rank " +
                           std::to_string(rank));
  }
  if (mine->second->ranks() != ranks) {
    return InvalidArgument("messages: they are for " + std::to_string(mine->second->ranks()) +
                           " ranks; the group has " + std::to_string(ranks));
  }
  return MessageCall{part->second, iteration < 0 ? all.rail(0) : all.group(static_cast<size_t>(iteration)),
                     mine->second};
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
// `partitions` holds the group of each rank for so many iterations. `board`: a file of this host's ranks, or "".
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
  if (*board != '\0') {
    Result<std::unique_ptr<nccl::Board>> opened = nccl::Board::Open(board, ranks);
    if (!opened.ok()) return Answer(opened.status(), error, size);
    part->board = std::move(opened.value());
    part->board->Arrive(rank, 0);
  }
  int before = 0;
  cudaGetDevice(&before);
  if (const cudaError_t set = cudaSetDevice(device); set != cudaSuccess) {
    return Answer(Status(Code::kInternal, std::string("messages: choosing the device: ") + cudaGetErrorString(set)),
                  error, size);
  }
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s));
  Result<std::unique_ptr<nccl::Communicators>> made =
      nccl::Communicators::Create(*found.value(), std::move(membership), deadline);
  cudaSetDevice(before);
  if (!made.ok()) return Answer(made.status(), error, size);
  part->communicators = std::move(made.value());
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().parts[{group, device}] = std::move(part);
  return 0;
}

// Ends a device's part in a group; calls that still run fail.
JAXCOMM_EXPORT void jaxcomm_nccl_leave(const char* group, int device) {
  std::shared_ptr<Part> gone;
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto found = TheRuntime().parts.find({group, device});
  if (found == TheRuntime().parts.end()) return;
  gone = std::move(found->second);
  TheRuntime().parts.erase(found);
}

// Hands in the messages of one rank, under the schedule's name.
JAXCOMM_EXPORT int64_t jaxcomm_register_messages(const char* name, const char* words, int64_t bytes, char* error,
                                                 int64_t size) {
  std::vector<uint32_t> aligned(static_cast<size_t>(bytes) / sizeof(uint32_t));
  std::memcpy(aligned.data(), words, aligned.size() * sizeof(uint32_t));
  Result<Messages> decoded = Messages::Decode(aligned.data(), aligned.size());
  if (!decoded.ok()) return Answer(decoded.status(), error, size);
  const uint32_t rank = decoded.value().rank();
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().messages[{name, rank}] = std::make_shared<const Messages>(std::move(decoded.value()));
  return 0;
}

}  // namespace jaxcomm
