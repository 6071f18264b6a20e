#include "cc/nccl/fake/ranks.h"

#include <cstring>

namespace jaxcomm::nccl {

Fake& TheFake() {
  static Fake* fake = std::make_unique<Fake>().release();
  return *fake;
}

int FakeComm::rank() const {
  const auto [colour, key] = meeting->came.at(world_rank);
  int below = 0;
  for (const auto& [other, of] : meeting->came) below += of.first == colour && of.second < key;
  return below;
}

std::string FakeComm::way(int from, int to) const {
  const int colour = meeting->came.at(world_rank).first;
  return name + "|" + std::to_string(colour) + "|" + std::to_string(from) + ">" + std::to_string(to);
}

FakeComm* Join(Fake& fake, const std::string& name, int world_rank, int ranks, int colour, int key) {
  std::shared_ptr<Meeting>& meeting = fake.meetings[name];
  if (!meeting) meeting = std::make_shared<Meeting>();
  meeting->expected = static_cast<size_t>(ranks);
  if (fake.lost.count(world_rank) == 0) meeting->came[world_rank] = {colour, key};
  FakeComm* const comm = std::make_unique<FakeComm>().release();
  comm->name = name;
  comm->world_rank = world_rank;
  comm->ranks = ranks;
  comm->meeting = meeting;
  fake.live.insert(comm);
  return comm;
}

Outcome Told(Fake& fake, const char* function) {
  const int count = ++fake.counts[function];
  const auto failure = fake.failures.find(function);
  return failure != fake.failures.end() && failure->second.first == count ? failure->second.second : kSuccess;
}

void Record(Fake& fake, const FakeComm& comm, const std::string& call) { fake.calls[comm.world_rank] += call + "\n"; }

namespace {

// Takes what has come for a communicator; in progress while something is due.
Outcome Receive(Fake& fake, FakeComm& comm) {
  while (!comm.receives.empty()) {
    Message& message = comm.receives.front();
    auto& sent = fake.sent[comm.way(message.peer, comm.rank())];
    if (sent.empty()) return kInProgress;
    if (sent.front().size() != message.bytes.size()) return comm.outcome = kInvalidUsage;
    std::memcpy(message.to, sent.front().data(), sent.front().size());
    sent.pop_front();
    comm.receives.pop_front();
  }
  return kSuccess;
}

}  // namespace

Outcome Progress(Fake& fake, FakeComm& comm) {
  if (comm.outcome != kSuccess) return comm.outcome;
  if (comm.revoked && std::exchange(comm.stopping, false)) return kInProgress;
  if (!comm.ready()) return kInProgress;
  if (comm.child != nullptr) {
    if (!comm.child->ready()) return kInProgress;
    *comm.handle = std::exchange(comm.child, nullptr);
  }
  return Receive(fake, comm);
}

}  // namespace jaxcomm::nccl
