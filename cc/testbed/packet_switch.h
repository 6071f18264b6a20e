// A switch with a link to each of its hosts, or a network of leaf and spine switches. It processes the arrivals, drops
// and departures of frames in the order of time.
//
//   PacketSwitch packet_switch(ports, limits, &taps);            // or with the links of spines as the last argument
//   const int64_t next = packet_switch.Run(since, now);   // no event happens before `next` unless a host sends
//
// A link carries one frame at a time in each direction, at the link's rate, and may lose frames at random. The times
// of frames depend on the links, not on the calls of Run. A host's burst arrives at the rate of the host's link. A late
// call of Run causes no drops, and leaves no link idle.
// With spines, each host is attached to a leaf, and each leaf has a link to each spine. A frame to a host of another
// leaf crosses one spine. The hash of the frame's flow selects this spine, even if the spine loses the frame. The
// switches at both ends of these links have the same queues and limits as the ports to hosts.
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
    size_t leaf = 0;
  };
  // Numbers of frames that a spine has passed on and dropped, and of frames that its links have lost at random.
  struct SpineCounts {
    int64_t packets = 0, bytes = 0, drops = 0, random_losses = 0;
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
  // `spines`: the links of each spine to every leaf; empty if one switch connects all hosts.
  PacketSwitch(const std::vector<Port>& ports, const QueueLimits& limits, Taps* taps,
               const std::vector<Link>& spines = {});

  // Processes the events until `now`, but at most about a millisecond's work. A frame that waits at a host counts as
  // sent at `since` or when the host's link becomes free, whichever is later. Returns the time of the next event. The
  // next call's `since` must lie between this call's `since` and the returned time.
  int64_t Run(int64_t since, int64_t now);

  // Sets the rate and loss of a link. Frames on the link arrive no later than if they started at `now` at the new rate.
  void SetLink(size_t port, Link link, int64_t now);
  // Sets the rate and loss of the links between a spine and all leaves, as SetLink does for one link.
  void SetSpine(size_t spine, Link link, int64_t now);

  size_t num_ports() const { return ports_.size(); }
  const Link& link(size_t port) const { return ports_[port].link; }
  // Whether the link from the host is busy, so that the host's next frame is not read now.
  bool IsReceiving(size_t port) const { return ports_[port].arrival != kNever; }
  const OutputQueue& queue(size_t port) const { return ports_[port].queue; }
  int64_t random_losses(size_t port) const { return ports_[port].random_losses; }
  size_t num_spines() const { return spines_.size(); }
  const Link& spine(size_t spine) const { return spines_[spine]; }
  SpineCounts spine_counts(size_t spine) const;

 private:
  struct Side {
    Link link;
    size_t leaf;
    OutputQueue queue;
    Frame incoming;             // the frame on the link from the host
    int64_t arrival = kNever;   // when the last byte of `incoming` arrives
    int64_t free_at = 0;        // when the link from the host is free
    int64_t random_losses = 0;  // number of random losses, in both directions together
  };

  // The link between a leaf and a spine, with a queue at each end.
  struct Uplink {
    OutputQueue up, down;
    int64_t random_losses = 0;
  };
  // The queue whose frame on the link departs next, and the time of this departure; kNever if all links are idle.
  struct NextDeparture {
    enum Kind { kToHost, kUp, kDown };

    int64_t at = kNever;
    Kind kind = kToHost;
    size_t index = 0;  // index of the port or of the uplink
  };

  NextDeparture FindDeparture() const;
  void Receive(size_t port, int64_t since);
  void Arrive(size_t port, int64_t since);
  void Depart(const NextDeparture& next);
  void Forward(Frame frame, size_t from_leaf, int64_t now);
  bool IsLost(const Link& link, int64_t* random_losses);
  size_t UplinkOf(size_t leaf, size_t spine) const { return leaf * spines_.size() + spine; }

  std::vector<Side> ports_;
  std::vector<Link> spines_;
  std::vector<Uplink> uplinks_;
  std::unordered_map<uint64_t, size_t> port_of_;
  Taps* const taps_;
  std::mt19937_64 random_;
};

}  // namespace jaxcomm
