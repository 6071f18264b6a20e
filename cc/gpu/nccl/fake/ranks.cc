#include "cc/gpu/nccl/fake/ranks.h"

#include <cstring>

namespace jaxcomm::nccl {

Fake& TheFake() {
  static Fake* fake = std::make_unique<Fake>().release();
  return *fake;
}

FakeComm* Join(Fake& fake, const std::string& name, int rank, int ranks) {
  std::shared_ptr<Bootstrap>& bootstrap = fake.bootstraps[name];
  if (!bootstrap) bootstrap = std::make_shared<Bootstrap>();
  bootstrap->expected = static_cast<size_t>(ranks);
  bootstrap->came.insert(rank);
  FakeComm* const comm = std::make_unique<FakeComm>().release();
  comm->name = name;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->bootstrap = bootstrap;
  fake.live.insert(comm);
  return comm;
}

Outcome Injected(Fake& fake, const char* function) {
  const int count = ++fake.counts[function];
  const auto failure = fake.failures.find(function);
  return failure != fake.failures.end() && failure->second.first == count ? failure->second.second : kSuccess;
}

void Record(Fake& fake, const FakeComm& comm, const std::string& call) { fake.calls[comm.rank] += call + "\n"; }

namespace {

// Takes what has come for a communicator; in progress while something is due.
Outcome Receive(Fake& fake, FakeComm& comm) {
  while (!comm.receives.empty()) {
    Message& message = comm.receives.front();
    auto& sent = fake.sent[comm.way(message.peer, comm.rank)];
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
  if (!comm.ready()) return kInProgress;
  return Receive(fake, comm);
}

}  // namespace jaxcomm::nccl
