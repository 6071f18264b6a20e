// A fake NCCL without GPUs, for tests. Ranks are threads of one process. GroupEnd copies the messages between host
// buffers and waits until all are copied. In the real NCCL only the stream waits.
//
//   fake::Nccl nccl;         // FakeNccl() uses this object; only one may exist at a time
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

// A sent message. It stays queued until it is received.
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
  // If `failing` names the function, returns an error and clears `failing`, so only one call fails. Otherwise returns
  // kSuccess.
  Outcome Injected(const std::string& function);

  std::string failing;
  double timeout_s = 20;     // per message
  Outcome asynchronous = 0;  // the error that CommGetAsyncError reports
  int sends = 0;             // number of sends by all ranks
  int communicators = 0;     // number of communicators that exist

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
