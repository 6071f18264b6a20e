// Simulates the processes of a job within one process, for tests. The seed determines how late messages arrive.
//
//   SimulatedNetwork network(/*processes=*/4, /*seed=*/7);
//   network.Connect(2, &executor.messages());
//   executor.messages().Connect(&network.transport(2));
//   network.Kill(3);    // the other processes get OnPeerGone; undelivered messages of process 3 are lost
//   network.Stop();     // no callback runs any more
//
// The notices of a process are never lost. They arrive in order, and before messages that the process sent later.
// Messages overtake each other. Some messages are copied when they are sent, and the others are read when they are
// delivered. If a Post accepts a view, the message may arrive as a view. While a process holds kMostViews views of one
// sender's messages, other messages of that sender wait. A message that a process sends to itself goes over a
// LocalTransport. Each process has its own thread for callbacks. A transport may be one of several rails. Fence and
// Withdraw work as on all kinds of rails, but a fenced process cannot be connected again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/transport/rail_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class SimulatedNetwork {
 public:
  // Number of views of one sender's messages that a process may hold. At this number, the sender's messages wait.
  static constexpr int kMostViews = 16;

  SimulatedNetwork(uint32_t processes, uint32_t seed);
  ~SimulatedNetwork();

  void Connect(uint32_t process, Transport::Events* events);
  RailTransport& transport(uint32_t process);
  uint32_t processes() const { return static_cast<uint32_t>(endpoints_.size()); }
  void Kill(uint32_t process);
  void Stop();

 private:
  class Endpoint;

  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace jaxcomm
