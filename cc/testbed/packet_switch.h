// A switch with a link to each of its hosts. It processes the arrivals, drops and departures of frames in the order of
// time.
//
//   PacketSwitch packet_switch(ports, limits, &taps);
//   const int64_t next = packet_switch.Run(since, now);   // no event happens before `next` unless a host sends
//
// A link carries one frame at a time in each direction, at the link's rate, and may lose frames at random. The times
// of frames depend on the links, not on the calls of Run. A host's burst arrives at the rate of the host's link. A late
// call of Run causes no drops, and leaves no link idle.
// Addresses are fixed, and frames to an address that no host has are dropped. All times are nanoseconds of one clock.
// Not thread-safe.
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
  // The rate of a link in bytes per second, and the share of frames that the link loses. Both are per direction.
  struct Link {
    double rate = 0, loss = 0;
  };
  struct Port {
    uint64_t address = 0;  // the host's MAC address
    Link link;
  };
  // The hosts' ends of the links. Read and Write do not block.
  class Taps {
   public:
    virtual ~Taps() = default;
    // Moves the host's next frame into `frame`. Returns false if the host has sent none.
    virtual bool Read(size_t port, Frame* frame) = 0;
    virtual void Write(size_t port, const Frame& frame) = 0;
  };

  // `taps` must outlive the switch.
  PacketSwitch(const std::vector<Port>& ports, const QueueLimits& limits, Taps* taps);

  // Processes the events until `now`, but at most about a millisecond's work. A frame that waits at a host counts as
  // sent at `since` or when the host's link becomes free, whichever is later. Returns the time of the next event. The
  // next call's `since` must lie between this call's `since` and the returned time.
  int64_t Run(int64_t since, int64_t now);

  // Sets the rate and loss of a link. Frames on the link arrive no later than if they started at `now` at the new rate.
  void SetLink(size_t port, Link link, int64_t now);

  size_t num_ports() const { return ports_.size(); }
  const Link& link(size_t port) const { return ports_[port].link; }
  // Whether the link from the host is busy, so that the host's next frame is not read now.
  bool IsReceiving(size_t port) const { return ports_[port].arrival != kNever; }
  const OutputQueue& queue(size_t port) const { return ports_[port].queue; }
  int64_t random_losses(size_t port) const { return ports_[port].random_losses; }

 private:
  struct Side {
    Link link;
    OutputQueue queue;
    Frame incoming;             // the frame on the link from the host
    int64_t arrival = kNever;   // when the last byte of `incoming` arrives
    int64_t free_at = 0;        // when the link from the host is free
    int64_t random_losses = 0;  // number of random losses, in both directions together
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
