// A switch with a link to each of its hosts: frames arrive, wait, are dropped and sent in the order of time.
//
//   PacketSwitch packet_switch(ports, limits, &taps);
//   const int64_t next = packet_switch.Run(since, now);   // nothing happens before `next` but that a host sends
//
// A link carries one frame at a time each way, at its rate, and may lose frames at random. So a burst of a host arrives
// as fast as its link is, and a late call of Run drops no frame and loses none of the links' time. Addresses are fixed:
// a frame to another than the hosts' is dropped. All times are nanoseconds of one clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "cc/testbed/frame.h"
#include "cc/testbed/output_queue.h"

namespace jaxcomm {

class PacketSwitch {
 public:
  // Its rate in bytes per second, each way, and the share of frames that it loses, each way.
  struct Link {
    double rate = 0, loss = 0;
  };
  struct Port {
    uint64_t address = 0;  // the host's MAC
    Link link;
  };
  // The hosts' ends of the links. Neither function blocks.
  class Taps {
   public:
    virtual ~Taps() = default;
    // Takes a frame of the host into `frame`. Returns false if it has sent none.
    virtual bool Read(size_t port, Frame* frame) = 0;
    virtual void Write(size_t port, const Frame& frame) = 0;
  };

  // `taps` outlives it.
  PacketSwitch(const std::vector<Port>& ports, const QueueLimits& limits, Taps* taps);

  // Does what happens until `now`, or as much of it as takes a millisecond or so. A frame that waits to be read is
  // taken to have come at `since`, or when the link was free after it. Returns: when something is to be done next. The
  // next `since` must not be after it, nor before this `since`.
  int64_t Run(int64_t since, int64_t now);

  // Frames on the link need no longer from now on than the new rate takes for them.
  void SetLink(size_t port, Link link, int64_t now);

  size_t num_ports() const { return ports_.size(); }
  const Link& link(size_t port) const { return ports_[port].link; }
  // Whether the link from the host is busy, so that no other frame of the host's would be read now.
  bool IsReceiving(size_t port) const { return ports_[port].arrival != kNever; }
  const OutputQueue& queue(size_t port) const { return ports_[port].queue; }
  int64_t random_losses(size_t port) const { return ports_[port].random_losses; }

 private:
  struct Side {
    Link link;
    OutputQueue queue;
    Frame incoming;             // on the link from the host
    int64_t arrival = kNever;   // of its last byte
    int64_t free_at = 0;        // the link from the host
    int64_t random_losses = 0;  // both ways
  };

  void Receive(size_t port, int64_t since);
  void Arrive(size_t port, int64_t since);
  void Depart(size_t port);
  bool IsLost(Side* side);

  std::vector<Side> ports_;
  std::unordered_map<uint64_t, size_t> port_of_;
  Taps* const taps_;
  std::mt19937_64 random_;
};

}  // namespace jaxcomm
