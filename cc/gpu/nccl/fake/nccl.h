// An NCCL without GPUs, for tests. Ranks are threads of one process. GroupEnd waits until its messages have moved
// between host buffers, although with the real NCCL only the stream waits.
//
//   fake::Nccl nccl;         // only one at a time; FakeNccl() uses it
//   nccl.failing = "Recv";   // the next call of Recv returns an error
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "cc/gpu/nccl/library.h"

namespace jaxcomm::nccl {

const Library& FakeNccl();

namespace fake {

// A queued message, until it is received.
struct Sent {
  const std::byte* from;
  size_t bytes;
  bool received = false;
};

struct Nccl {
  Nccl();
  ~Nccl();  // terminates all waits

  Id NewId();
  // Waits for a condition. Returns an error after `seconds`, or when the destructor runs.
  template <typename Condition>
  Outcome Await(std::unique_lock<std::mutex>& lock, double seconds, Condition condition);
  // Returns the error that this call of `function` must return: kSuccess unless `failing` names the function. Fails
  // only one call.
  Outcome Injected(const std::string& function);

  std::string failing;
  double timeout_s = 20;     // per message
  Outcome asynchronous = 0;  // the error that CommGetAsyncError finds
  int sends = 0;             // number of sends by all ranks
  int communicators = 0;     // number of communicators that were not aborted yet

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::set<int>> came;  // the ranks that joined, by the id of the communicator
  std::map<std::tuple<std::string, int, int>, std::deque<std::shared_ptr<Sent>>> sent;  // by id, sender and receiver
  bool ending = false;
  int waiting = 0;
  int ids = 0;
};

}  // namespace fake
}  // namespace jaxcomm::nccl
