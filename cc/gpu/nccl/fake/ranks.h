// What the fake libnccl knows of its ranks, their communicators and the messages on their way.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/gpu/nccl/library.h"

namespace jaxcomm::nccl {

#define FAKE(type) extern "C" __attribute__((visibility("default"))) type

constexpr Outcome kInvalidArgument = 4;
constexpr Outcome kInvalidUsage = 5;

// The ranks that join one communicator.
struct Bootstrap {
  size_t expected = 0;
  std::set<int> came;
};

struct Message {
  int peer;
  std::byte* to;  // null: it is sent
  std::vector<std::byte> bytes;
};

struct FakeComm {
  std::string name;  // the same on all of its ranks
  int rank;
  int ranks;
  std::shared_ptr<Bootstrap> bootstrap;
  std::deque<Message> receives;
  Outcome outcome = kSuccess;

  bool ready() const { return bootstrap->came.size() == bootstrap->expected; }
  std::string way(int from, int to) const { return name + "|" + std::to_string(from) + ">" + std::to_string(to); }
};

struct Fake {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Bootstrap>> bootstraps;
  std::map<std::string, std::deque<std::vector<std::byte>>> sent;  // by the way they go
  std::set<FakeComm*> live;
  std::map<int, std::string> calls;
  std::map<std::string, std::pair<int, Outcome>> failures;
  std::map<std::string, int> counts;
  int ids = 0;
};

Fake& TheFake();

// Makes a communicator, and has the rank come to its bootstrap.
FakeComm* Join(Fake& fake, const std::string& name, int rank, int ranks);

// The outcome that was asked for this call, or success.
Outcome Injected(Fake& fake, const char* function);

void Record(Fake& fake, const FakeComm& comm, const std::string& call);

// How far a communicator is: what was begun on it has ended, goes on or has failed.
Outcome Progress(Fake& fake, FakeComm& comm);

}  // namespace jaxcomm::nccl
