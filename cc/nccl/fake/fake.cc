// A libnccl without GPUs, for tests: the ranks are threads of one process, communicators come into being when all of
// their ranks have asked for them, calls are recorded, and may be told to fail. Messages are copied when both are
// there.
//
// Built with JAXCOMM_FAKE_OLD it is NCCL 2.26, with neither shrink nor revoke.

#include "cc/nccl/fake/fake.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cc/nccl/library.h"

namespace {

using jaxcomm::nccl::Config;
using jaxcomm::nccl::Id;
using jaxcomm::nccl::kInProgress;
using jaxcomm::nccl::kSuccess;
using jaxcomm::nccl::Outcome;

constexpr Outcome kInvalidArgument = 4;

// What ranks come together for: by the name of what they join.
struct Meeting {
  size_t expected = 0;
  std::set<int> came;
};

struct FakeComm {
  std::string name;  // the same on all of its ranks
  int world_rank;    // in the first communicator, which names the thread in records
  int rank;
  int ranks;
  std::shared_ptr<Meeting> meeting;
  int splits = 0;
  bool revoked = false;
};

struct Fake {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
  std::set<FakeComm*> live;
  std::map<int, std::string> calls;
  std::map<std::string, std::pair<int, Outcome>> failures;
  std::map<std::string, int> counts;
  std::set<int> lost;
  int ids = 0;
};

Fake& TheFake() {
  static Fake* fake = std::make_unique<Fake>().release();
  return *fake;
}

// The outcome that was asked for this call, or success.
Outcome Told(Fake& fake, const char* function) {
  const int count = ++fake.counts[function];
  const auto failure = fake.failures.find(function);
  return failure != fake.failures.end() && failure->second.first == count ? failure->second.second : kSuccess;
}

void Record(Fake& fake, int rank, const std::string& call) { fake.calls[rank] += call + "\n"; }

FakeComm* Join(Fake& fake, const std::string& name, int world_rank, int rank, int ranks) {
  std::shared_ptr<Meeting>& meeting = fake.meetings[name];
  if (!meeting) meeting = std::make_shared<Meeting>();
  meeting->expected = static_cast<size_t>(ranks);
  if (fake.lost.count(world_rank) == 0) meeting->came.insert(world_rank);
  FakeComm* const comm = std::make_unique<FakeComm>(FakeComm{name, world_rank, rank, ranks, meeting}).release();
  fake.live.insert(comm);
  return comm;
}

bool Valid(const Config* config) {
  return config != nullptr && config->size == sizeof(Config) && config->magic == 0xcafebeef && config->blocking == 0;
}

}  // namespace

#define FAKE(type) extern "C" __attribute__((visibility("default"))) type

FAKE(void) fake_reset() {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  fake.meetings.clear();
  fake.calls.clear();
  fake.failures.clear();
  fake.counts.clear();
  fake.lost.clear();
}

FAKE(void) fake_fail(const char* function, int nth, int outcome) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().failures[function] = {nth, outcome};
}

FAKE(void) fake_lose(int rank) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().lost.insert(rank);
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
  Record(fake, rank, std::string("init ") + (config->net_name != nullptr ? config->net_name : "-"));
  if (const Outcome told = Told(fake, "ncclCommInitRankConfig"); told != kSuccess) return told;
  *comm = Join(fake, id.bytes, rank, rank, ranks);
  return kInProgress;
}

FAKE(Outcome) ncclCommSplit(FakeComm* parent, int colour, int key, FakeComm** comm, Config* config) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (!Valid(config) || colour < 0) return kInvalidArgument;
  const int number = parent->splits++;
  Record(fake, parent->world_rank, "split " + std::to_string(number) + " of " + parent->name);
  if (const Outcome told = Told(fake, "ncclCommSplit"); told != kSuccess) return told;
  // All ranks of the parent must call, whatever their colour.
  *comm = Join(fake, parent->name + "/" + std::to_string(number), parent->world_rank, key, parent->ranks);
  return kInProgress;
}

FAKE(Outcome) ncclCommGetAsyncError(FakeComm* comm, Outcome* outcome) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.count(comm) == 0) return kInvalidArgument;
  const Outcome told = Told(fake, "ncclCommGetAsyncError");
  const bool ready = comm->meeting->came.size() == comm->meeting->expected;
  *outcome = told != kSuccess ? told : ready || comm->revoked ? kSuccess : kInProgress;
  return kSuccess;
}

FAKE(Outcome) ncclCommAbort(FakeComm* comm) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.erase(comm) == 0) return kInvalidArgument;
  Record(fake, comm->world_rank, "abort " + comm->name);
  std::unique_ptr<FakeComm> freed(comm);
  return kSuccess;
}

FAKE(Outcome) ncclGroupStart() { return Told(TheFake(), "ncclGroupStart"); }
FAKE(Outcome) ncclGroupEnd() { return Told(TheFake(), "ncclGroupEnd"); }

FAKE(Outcome) ncclSend(const void*, size_t count, int, int peer, FakeComm* comm, void*) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  Record(fake, comm->world_rank, "send " + std::to_string(count) + " to " + std::to_string(peer));
  return Told(fake, "ncclSend");
}

FAKE(Outcome) ncclRecv(void*, size_t count, int, int peer, FakeComm* comm, void*) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  Record(fake, comm->world_rank, "receive " + std::to_string(count) + " from " + std::to_string(peer));
  return Told(fake, "ncclRecv");
}

#ifndef JAXCOMM_FAKE_OLD
FAKE(Outcome) ncclCommRevoke(FakeComm* comm, int flags) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (flags != 0) return kInvalidArgument;
  Record(fake, comm->world_rank, "revoke " + comm->name);
  comm->revoked = true;
  return Told(fake, "ncclCommRevoke");
}

FAKE(Outcome) ncclCommShrink(FakeComm* parent, int* gone, int num_gone, FakeComm** comm, Config* config, int) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (!Valid(config)) return kInvalidArgument;
  int rank = parent->rank;
  for (int i = 0; i < num_gone; ++i) {
    if (gone[i] == parent->rank) return kInvalidArgument;
    if (gone[i] < parent->rank) --rank;
  }
  Record(fake, parent->world_rank, "shrink " + parent->name);
  if (const Outcome told = Told(fake, "ncclCommShrink"); told != kSuccess) return told;
  *comm = Join(fake, parent->name + "-", parent->world_rank, rank, parent->ranks - num_gone);
  return kInProgress;
}
#endif
