// A libnccl without GPUs, for tests: the ranks are threads of one process. As NCCL does where it may not block, it
// returns from everything at once, and reports through ncclCommGetAsyncError when all ranks have come. Messages are
// copied when both sides are there, and there is no stream. Calls are recorded, and may be made to fail.
//
// Built with JAXCOMM_FAKE_OLD it is NCCL 2.26.

#include "cc/gpu/nccl/fake/fake.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/gpu/nccl/fake/ranks.h"
#include "cc/gpu/nccl/library.h"

using namespace jaxcomm::nccl;

namespace {

thread_local std::vector<std::pair<FakeComm*, Message>> the_group;
thread_local Outcome the_groups_error = kSuccess;  // of a call in it: then nothing of it is launched

bool Valid(const Config* config) {
  return config != nullptr && config->size == sizeof(Config) && config->magic == 0xcafebeef && config->blocking == 0;
}

}  // namespace

FAKE(void) fake_reset() {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  fake.bootstraps.clear();
  fake.sent.clear();
  fake.calls.clear();
  fake.failures.clear();
  fake.counts.clear();
}

FAKE(void) fake_fail(const char* function, int nth, int outcome) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().failures[function] = {nth, outcome};
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
#ifdef JAXCOMM_FAKE_OLD
  *version = 22606;
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
  return Injected(fake, "ncclGetUniqueId");
}

FAKE(Outcome) ncclCommInitRankConfig(FakeComm** comm, int ranks, Id id, int rank, Config* config) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (!Valid(config)) return kInvalidArgument;
  fake.calls[rank] += "init\n";
  if (const Outcome injected = Injected(fake, "ncclCommInitRankConfig"); injected != kSuccess) return injected;
  *comm = Join(fake, id.bytes, rank, ranks);
  return kInProgress;
}

FAKE(Outcome) ncclCommGetAsyncError(FakeComm* comm, Outcome* outcome) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.count(comm) == 0) return kInvalidArgument;
  if (const Outcome injected = Injected(fake, "ncclCommGetAsyncError"); injected != kSuccess) comm->outcome = injected;
  *outcome = Progress(fake, *comm);
  return kSuccess;
}

FAKE(Outcome) ncclCommAbort(FakeComm* comm) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.erase(comm) == 0) return kInvalidArgument;
  Record(fake, *comm, "abort");
  std::unique_ptr<FakeComm> freed(comm);
  return kSuccess;
}

FAKE(Outcome) ncclGroupStart() {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  return Injected(TheFake(), "ncclGroupStart");
}

FAKE(Outcome) ncclGroupEnd() {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  const auto group = std::exchange(the_group, {});
  if (const Outcome error = std::exchange(the_groups_error, kSuccess); error != kSuccess) return error;
  if (const Outcome injected = Injected(fake, "ncclGroupEnd"); injected != kSuccess) return injected;
  for (const auto& [comm, message] : group) {
    if (!comm->ready()) return kInvalidUsage;
    if (message.to != nullptr) {
      comm->receives.push_back(message);
    } else {
      fake.sent[comm->way(comm->rank, message.peer)].push_back(message.bytes);
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
  return the_groups_error = Injected(fake, "ncclSend");
}

FAKE(Outcome) ncclRecv(void* to, size_t count, int, int peer, FakeComm* comm, void*) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  Record(fake, *comm, "receive " + std::to_string(count) + " from " + std::to_string(peer));
  the_group.push_back({comm, {peer, static_cast<std::byte*>(to), std::vector<std::byte>(count)}});
  return the_groups_error = Injected(fake, "ncclRecv");
}

FAKE(Outcome) ncclAllGather(const void* from, void* to, size_t count, int type, FakeComm* comm, void* stream) {
  {
    std::lock_guard<std::mutex> lock(TheFake().mutex);
    if (const Outcome injected = Injected(TheFake(), "ncclAllGather"); injected != kSuccess) return injected;
  }
  for (int peer = 0; peer < comm->ranks; ++peer) {
    ncclSend(from, count, type, peer, comm, stream);
    ncclRecv(static_cast<std::byte*>(to) + peer * count, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}
