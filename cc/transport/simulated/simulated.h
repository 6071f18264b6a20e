// Processes of a job within one process, for tests: between them messages are late, overtake each other, and end when a
// process is killed, by a seed.
//
//   SimulatedNetwork network(/*processes=*/4, /*seed=*/7);
//   network.Connect(2, &executor.messages());
//   executor.messages().Connect(&network.transport(2));
//   network.Kill(3);    // the others learn of it; undelivered messages are lost
//   network.Stop();     // no callback runs any more
//
// A process's notices come in order and before messages that it sent later, and none is lost; messages overtake each
// other. Some messages are copied when they are sent, others read when they are delivered; some are given as views
// where these are accepted, and a process that holds too many views of a sender gets nothing more from it. A message
// that a process sends to itself goes over a LocalTransport. Each process's callbacks run on a thread of its own. It
// may be one of several rails: Fence and Withdraw are as with all kinds, but a process that was fenced is not connected
// again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/transport/rail_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class SimulatedNetwork {
 public:
  // Views of one sender that a process can hold before nothing more comes from it.
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
