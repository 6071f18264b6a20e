// A libnccl without GPUs, for tests: the ranks are threads of one process. As NCCL does where it may not block, it
// returns from everything at once, and reports through ncclCommGetAsyncError when all ranks have come; the handle of a
// communicator that is made from another is written only then. Messages are copied when both sides are there, and there
// is no stream. Calls are recorded, and may be told to fail.
//
// Built with JAXCOMM_FAKE_OLD it is NCCL 2.28, which cannot revoke; with JAXCOMM_FAKE_ANCIENT it is 2.26.

#include "cc/nccl/fake/fake.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/nccl/fake/ranks.h"
#include "cc/nccl/library.h"

using namespace jaxcomm::nccl;

namespace {

thread_local std::vector<std::pair<FakeComm*, Message>> the_group;
thread_local Outcome the_groups_error = kSuccess;  // of a call in it: then nothing of it is launched

bool Valid(const Config* config) {
  return config != nullptr && config->size == sizeof(Config) && config->magic == 0xcafebeef && config->blocking == 0;
}

std::string Module(const Config& config) { return config.net_name != nullptr ? config.net_name : "-"; }

}  // namespace

FAKE(void) fake_reset() {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  fake.meetings.clear();
  fake.sent.clear();
  fake.calls.clear();
  fake.failures.clear();
  fake.counts.clear();
  fake.lost.clear();
  fake.stall = {};
}

FAKE(void) fake_fail(const char* function, int nth, int outcome) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().failures[function] = {nth, outcome};
}

FAKE(void) fake_lose(int rank) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().lost.insert(rank);
}

FAKE(void) fake_stall(int milliseconds) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().stall = std::chrono::milliseconds(milliseconds);
}

FAKE(size_t) fake_calls(int rank, char* text, size_t size) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  const std::string& calls = TheFake().calls[rank];
  if (size > calls.size()) std::memcpy(text, calls.c_str(), calls.size() + 1);
  return calls.size();
}

FAKE(int) fake_live() {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  return static_cast<int>(TheFake().live.size());
}

FAKE(Outcome) ncclGetVersion(int* version) {
#ifdef JAXCOMM_FAKE_ANCIENT
  *version = 22606;
#elif defined(JAXCOMM_FAKE_OLD)
  *version = 22803;
#else
  *version = 23201;
#endif
  return kSuccess;
}

FAKE(const char*) ncclGetErrorString(Outcome outcome) {
  switch (outcome) {
    case kSuccess:
      return "no error";
    case 2:
      return "unhandled system error";
    case kInvalidUsage:
      return "invalid usage";
    case 6:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

FAKE(const char*) ncclGetLastError(FakeComm*) { return "socket closed by the fake"; }

FAKE(Outcome) ncclGetUniqueId(Id* id) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = "id" + std::to_string(fake.ids++);
  std::memcpy(id->bytes, text.data(), text.size());
  return Told(fake, "ncclGetUniqueId");
}

FAKE(Outcome) ncclCommInitRankConfig(FakeComm** comm, int ranks, Id id, int rank, Config* config) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (!Valid(config)) return kInvalidArgument;
  fake.calls[rank] += "init " + Module(*config) + "\n";
  if (const Outcome told = Told(fake, "ncclCommInitRankConfig"); told != kSuccess) return told;
  *comm = Join(fake, id.bytes, rank, ranks, 0, rank);
  return kInProgress;
}

FAKE(Outcome) ncclCommSplit(FakeComm* parent, int colour, int key, FakeComm** comm, Config* config) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (!Valid(config) || colour < 0 || Progress(fake, *parent) != kSuccess) return kInvalidArgument;
  const std::string number = std::to_string(parent->children++);
  Record(fake, *parent, "split " + number + " of " + parent->name + " on " + Module(*config));
  if (const Outcome told = Told(fake, "ncclCommSplit"); told != kSuccess) return told;
  // All ranks of the parent must call, whatever their colour.
  parent->child = Join(fake, parent->name + "/" + number, parent->world_rank, parent->ranks, colour, key);
  parent->handle = comm;
  *comm = nullptr;
  return kSuccess;
}

FAKE(Outcome) ncclCommGetAsyncError(FakeComm* comm, Outcome* outcome) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.count(comm) == 0) return kInvalidArgument;
  if (const Outcome told = Told(fake, "ncclCommGetAsyncError"); told != kSuccess) comm->outcome = told;
  *outcome = Progress(fake, *comm);
  return kSuccess;
}

FAKE(Outcome) ncclCommCount(FakeComm* comm, int* ranks) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  *ranks = comm->ranks;
  return Told(TheFake(), "ncclCommCount");
}

FAKE(Outcome) ncclCommUserRank(FakeComm* comm, int* rank) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  *rank = comm->rank();
  return Told(TheFake(), "ncclCommUserRank");
}

FAKE(Outcome) ncclCommAbort(FakeComm* comm) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.erase(comm) == 0) return kInvalidArgument;
  Record(fake, *comm, "abort " + comm->name);
  if (comm->child != nullptr) *comm->handle = comm->child;  // what was begun ends first
  std::unique_ptr<FakeComm> freed(comm);
  return kSuccess;
}

FAKE(Outcome) ncclGroupStart() {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  return Told(TheFake(), "ncclGroupStart");
}

FAKE(Outcome) ncclGroupEnd() {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  const auto group = std::exchange(the_group, {});
  if (const Outcome error = std::exchange(the_groups_error, kSuccess); error != kSuccess) return error;
  if (const Outcome told = Told(fake, "ncclGroupEnd"); told != kSuccess) return told;
  for (const auto& [comm, message] : group) {
    if (comm->revoked || !comm->ready()) return kInvalidUsage;
    if (message.to != nullptr) {
      comm->receives.push_back(message);
    } else {
      fake.sent[comm->way(comm->rank(), message.peer)].push_back(message.bytes);
    }
  }
  return kInProgress;
}

FAKE(Outcome) ncclSend(const void* from, size_t count, int, int peer, FakeComm* comm, void*) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  Record(fake, *comm, "send " + std::to_string(count) + " to " + std::to_string(peer));
  const auto* bytes = static_cast<const std::byte*>(from);
  the_group.push_back({comm, {peer, nullptr, {bytes, bytes + count}}});
  return the_groups_error = Told(fake, "ncclSend");
}

FAKE(Outcome) ncclRecv(void* to, size_t count, int, int peer, FakeComm* comm, void*) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  Record(fake, *comm, "receive " + std::to_string(count) + " from " + std::to_string(peer));
  the_group.push_back({comm, {peer, static_cast<std::byte*>(to), std::vector<std::byte>(count)}});
  return the_groups_error = Told(fake, "ncclRecv");
}

FAKE(Outcome) ncclAllGather(const void* from, void* to, size_t count, int type, FakeComm* comm, void* stream) {
  std::chrono::milliseconds stall;
  {
    std::lock_guard<std::mutex> lock(TheFake().mutex);
    if (const Outcome told = Told(TheFake(), "ncclAllGather"); told != kSuccess) return told;
    stall = TheFake().stall;
  }
  std::this_thread::sleep_for(stall);
  for (int peer = 0; peer < comm->ranks; ++peer) {
    ncclSend(from, count, type, peer, comm, stream);
    ncclRecv(static_cast<std::byte*>(to) + peer * count, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}

FAKE(Outcome) ncclCommShrink(FakeComm* parent, int* gone, int num_gone, FakeComm** comm, Config* config, int flags) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (!Valid(config) || num_gone == 0 || flags != 0 || Progress(fake, *parent) != kSuccess) return kInvalidArgument;
  std::string name = parent->name;
  for (int i = 0; i < num_gone; ++i) {
    if (gone[i] == parent->rank()) return kInvalidArgument;
    name += "-" + std::to_string(gone[i]);
  }
  Record(fake, *parent, "shrink " + parent->name + " on " + Module(*config));
  if (const Outcome told = Told(fake, "ncclCommShrink"); told != kSuccess) return told;
  parent->child = Join(fake, name, parent->world_rank, parent->ranks - num_gone, 0, parent->rank());
  parent->handle = comm;
  *comm = nullptr;
  return kSuccess;
}

#ifndef JAXCOMM_FAKE_OLD
FAKE(Outcome) ncclCommRevoke(FakeComm* comm, int flags) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (flags != 0 || comm->revoked || fake.live.count(comm) == 0) return kInvalidArgument;
  Record(fake, *comm, "revoke " + comm->name);
  if (const Outcome told = Told(fake, "ncclCommRevoke"); told != kSuccess) return told;
  comm->revoked = comm->stopping = true;
  comm->receives.clear();
  comm->outcome = kSuccess;
  return kInProgress;
}
#endif
