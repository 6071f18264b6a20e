// An NCCL without GPUs, for tests: the ranks are threads of one process, and each waits in GroupEnd until its messages
// have moved between the host's buffers, as a stream would.
//
//   fake::Nccl nccl;         // one at a time; the functions of FakeNccl() are about it
//   nccl.failing = "Recv";   // the next call of it returns an error
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

// A message that its sender has queued, until it was received.
struct Sent {
  const std::byte* from;
  size_t bytes;
  bool received = false;
};

struct Nccl {
  Nccl();
  ~Nccl();  // ends all waits

  Id NewId();
  // Waits for a condition; a timeout, or the end, is an error.
  template <typename Condition>
  Outcome Await(std::unique_lock<std::mutex>& lock, double seconds, Condition condition);
  // Of a call of this function, if it is the one to fail.
  Outcome Injected(const std::string& function);

  std::string failing;
  double timeout_s = 20;     // of a message
  Outcome asynchronous = 0;  // the error that a query finds
  int sends = 0;             // of all ranks
  int communicators = 0;     // that were not aborted

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::set<int>> came;  // ranks, by the id of a communicator
  std::map<std::tuple<std::string, int, int>, std::deque<std::shared_ptr<Sent>>> sent;  // by id, from and to
  bool ending = false;
  int waiting = 0;
  int ids = 0;
};

}  // namespace fake
}  // namespace jaxcomm::nccl
