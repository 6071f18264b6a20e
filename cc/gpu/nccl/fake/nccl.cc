#include "cc/gpu/nccl/fake/nccl.h"

#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

namespace jaxcomm::nccl {

struct Opaque {
  std::string id;
  int rank, ranks;
};

namespace fake {
namespace {

constexpr Outcome kSystemError = 2, kInvalidArgument = 4, kTimeout = 6;
Nccl* the_nccl = nullptr;

struct Message {
  Comm comm;
  int peer;
  const std::byte* from;  // null for a receive
  std::byte* to;
  size_t bytes;
};
thread_local std::vector<Message> the_group;

// Waits for all ranks without a deadline, as NCCL does.
Outcome CommInitRank(Comm* comm, int ranks, Id id, int rank) {
  std::unique_lock<std::mutex> lock(the_nccl->mutex);
  const std::string name(id.bytes, sizeof(id.bytes));
  if (const Outcome injected = the_nccl->Injected("CommInitRank"); injected != kSuccess) return injected;
  the_nccl->came[name].insert(rank);
  the_nccl->changed.notify_all();
  const auto all_came = [&] { return the_nccl->came[name].size() == static_cast<size_t>(ranks); };
  if (const Outcome outcome = the_nccl->Await(lock, 3600, all_came); outcome != kSuccess) return outcome;
  ++the_nccl->communicators;
  return *comm = new Opaque{name, rank, ranks}, kSuccess;
}

Outcome CommAbort(Comm comm) {
  std::lock_guard<std::mutex> lock(the_nccl->mutex);
  --the_nccl->communicators;
  return delete comm, kSuccess;
}

Outcome Send(const void* from, size_t bytes, int, int peer, Comm comm, cudaStream_t) {
  the_group.push_back({comm, peer, static_cast<const std::byte*>(from), nullptr, bytes});
  std::lock_guard<std::mutex> lock(the_nccl->mutex);
  ++the_nccl->sends;
  return the_nccl->Injected("Send");
}

Outcome Recv(void* to, size_t bytes, int, int peer, Comm comm, cudaStream_t) {
  the_group.push_back({comm, peer, nullptr, static_cast<std::byte*>(to), bytes});
  std::lock_guard<std::mutex> lock(the_nccl->mutex);
  return the_nccl->Injected("Recv");
}

// Transfers all messages of a group at the same time. The receives of one rank from another rank match that rank's
// sends in order.
Outcome GroupEnd() {
  const std::vector<Message> group = std::exchange(the_group, {});
  std::unique_lock<std::mutex> lock(the_nccl->mutex);
  if (const Outcome injected = the_nccl->Injected("GroupEnd"); injected != kSuccess) return injected;
  std::vector<std::shared_ptr<Sent>> mine;
  for (const auto& [comm, peer, from, to, bytes] : group) {
    if (from == nullptr) {
      std::memset(to, 0xa5, bytes);  // lets a test detect a read before the message has arrived
    } else {
      mine.push_back(std::make_shared<Sent>(Sent{from, bytes}));
      the_nccl->sent[{comm->id, comm->rank, peer}].push_back(mine.back());
    }
  }
  the_nccl->changed.notify_all();
  for (const auto& [comm, peer, from, to, bytes] : group) {
    if (from != nullptr) continue;
    auto& sent = the_nccl->sent[{comm->id, peer, comm->rank}];
    const Outcome came = the_nccl->Await(lock, the_nccl->timeout_s, [&] { return !sent.empty(); });
    if (came != kSuccess || sent.front()->bytes != bytes) return came != kSuccess ? came : kInvalidArgument;
    std::memcpy(to, sent.front()->from, bytes);
    sent.front()->received = true;
    sent.pop_front();
    the_nccl->changed.notify_all();
  }
  for (const auto& each : mine) {
    const Outcome taken = the_nccl->Await(lock, the_nccl->timeout_s, [&] { return each->received; });
    if (taken != kSuccess) return taken;
  }
  return kSuccess;
}

}  // namespace

Nccl::Nccl() { the_nccl = this; }

Nccl::~Nccl() {
  std::unique_lock<std::mutex> lock(mutex);
  ending = true;
  changed.notify_all();
  changed.wait(lock, [this] { return waiting == 0; });
}

Id Nccl::NewId() {
  std::lock_guard<std::mutex> lock(mutex);
  return {{static_cast<char>(++ids)}};
}

template <typename Condition>
Outcome Nccl::Await(std::unique_lock<std::mutex>& lock, double seconds, Condition condition) {
  ++waiting;
  const bool holds =
      changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return ending || condition(); });
  if (--waiting == 0) changed.notify_all();
  return holds && !ending ? kSuccess : kTimeout;
}

Outcome Nccl::Injected(const std::string& function) {
  if (failing != function) return kSuccess;
  failing.clear();
  return kSystemError;
}

}  // namespace fake

const Library& FakeNccl() {
  static const Library library{
      [](int* version) { return *version = 23007, kSuccess; },
      [](Outcome outcome) { return outcome == fake::kTimeout ? "no message has arrived" : "system error"; },
      [](Comm) { return "the fake's"; },
      [](Id* id) { return *id = fake::the_nccl->NewId(), kSuccess; },
      fake::CommInitRank,
      [](Comm, Outcome* outcome) { return *outcome = fake::the_nccl->asynchronous, kSuccess; },
      fake::CommAbort,
      [] { return kSuccess; },
      fake::GroupEnd,
      fake::Send,
      fake::Recv};
  return library;
}

}  // namespace jaxcomm::nccl
