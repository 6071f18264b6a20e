#include "cc/testbed/packet_switch.h"

#include <algorithm>
#include <utility>

namespace jaxcomm {
namespace {

constexpr size_t kMostAtOnce = 256;  // maximum number of arrivals and departures in one Run

}  // namespace

PacketSwitch::PacketSwitch(const std::vector<Port>& ports, const QueueLimits& limits, Taps* taps,
                           const std::vector<Link>& spines)
    : spines_(spines), taps_(taps) {
  size_t leaves = 0;
  for (const Port& port : ports) {
    port_of_[port.address] = ports_.size();
    ports_.push_back({port.link, port.leaf, OutputQueue(limits), {}, kNever, 0, 0});
    leaves = std::max(leaves, port.leaf + 1);
  }
  for (size_t i = 0; i < leaves * spines.size(); ++i) uplinks_.push_back({OutputQueue(limits), OutputQueue(limits), 0});
}

int64_t PacketSwitch::Run(int64_t since, int64_t now) {
  if (ports_.empty()) return kNever;
  for (size_t port = 0; port < ports_.size(); ++port) {
    if (!IsReceiving(port)) Receive(port, since);
  }
  for (size_t done = 0;; ++done) {
    size_t receiver = 0;
    for (size_t port = 1; port < ports_.size(); ++port) {
      if (ports_[port].arrival < ports_[receiver].arrival) receiver = port;
    }
    const NextDeparture departure = FindDeparture();
    const int64_t arrival = ports_[receiver].arrival, next = std::min(departure.at, arrival);
    if (next > now || done == kMostAtOnce) return next;
    if (departure.at <= arrival) {  // departures first, because they make room
      Depart(departure);
    } else {
      Arrive(receiver, since);
    }
  }
}

void PacketSwitch::SetLink(size_t port, Link link, int64_t now) {
  Side& side = ports_[port];
  side.link = link;
  side.queue.Hasten(link.rate, now);
  if (IsReceiving(port)) {
    side.free_at = side.arrival = std::min(side.arrival, now + TimeOnLink(side.incoming.size(), link.rate));
  }
}

void PacketSwitch::SetSpine(size_t spine, Link link, int64_t now) {
  spines_[spine] = link;
  for (size_t i = spine; i < uplinks_.size(); i += spines_.size()) {
    for (OutputQueue* const queue : {&uplinks_[i].up, &uplinks_[i].down}) queue->Hasten(link.rate, now);
  }
}

PacketSwitch::SpineCounts PacketSwitch::spine_counts(size_t spine) const {
  SpineCounts counts;
  for (size_t i = spine; i < uplinks_.size(); i += spines_.size()) {
    const Uplink& uplink = uplinks_[i];
    counts.random_losses += uplink.random_losses;
    for (size_t priority = 0; priority < kPriorities; ++priority) {
      const OutputQueue::Counts& down = uplink.down.counts(priority);
      counts.packets += down.packets;
      counts.bytes += down.bytes;
      for (const OutputQueue* const queue : {&uplink.up, &uplink.down}) {
        counts.drops += queue->counts(priority).ordinary_drops + queue->counts(priority).important_drops;
      }
    }
  }
  return counts;
}

PacketSwitch::NextDeparture PacketSwitch::FindDeparture() const {
  NextDeparture next;
  const auto look = [&next](const OutputQueue& queue, NextDeparture::Kind kind, size_t index) {
    if (queue.departure() < next.at) next = {queue.departure(), kind, index};
  };
  for (size_t port = 0; port < ports_.size(); ++port) look(ports_[port].queue, NextDeparture::kToHost, port);
  for (size_t i = 0; i < uplinks_.size(); ++i) {
    look(uplinks_[i].up, NextDeparture::kUp, i);
    look(uplinks_[i].down, NextDeparture::kDown, i);
  }
  return next;
}

// Puts the host's next frame on the link, if the host has sent one.
void PacketSwitch::Receive(size_t port, int64_t since) {
  Side& side = ports_[port];
  side.arrival = kNever;
  if (!taps_->Read(port, &side.incoming)) return;
  side.free_at = std::max(side.free_at, since) + TimeOnLink(side.incoming.size(), side.link.rate);
  side.arrival = side.free_at;
}

void PacketSwitch::Arrive(size_t port, int64_t since) {
  Side& side = ports_[port];
  const auto to = port_of_.find(side.incoming.destination());
  if (to != port_of_.end() && to->second != port && !IsLost(side.link, &side.random_losses)) {
    Forward(std::move(side.incoming), side.leaf, side.arrival);
  }
  Receive(port, since);
}

void PacketSwitch::Depart(const NextDeparture& next) {
  if (next.kind == NextDeparture::kToHost) {
    Side& side = ports_[next.index];
    const Frame frame = side.queue.Depart(side.link.rate);
    if (!IsLost(side.link, &side.random_losses)) taps_->Write(next.index, frame);
    return;
  }
  const size_t spine = next.index % spines_.size();
  const Link& link = spines_[spine];
  Uplink& uplink = uplinks_[next.index];
  Frame frame = (next.kind == NextDeparture::kUp ? uplink.up : uplink.down).Depart(link.rate);
  if (IsLost(link, &uplink.random_losses)) return;
  const size_t to_leaf = ports_[port_of_.at(frame.destination())].leaf;
  if (next.kind == NextDeparture::kUp) {
    uplinks_[UplinkOf(to_leaf, spine)].down.Add(std::move(frame), link.rate, next.at);
  } else {
    Forward(std::move(frame), to_leaf, next.at);
  }
}

// Adds a frame that a leaf has received to the queue of its next link.
void PacketSwitch::Forward(Frame frame, size_t from_leaf, int64_t now) {
  Side& output = ports_[port_of_.at(frame.destination())];
  if (spines_.empty() || output.leaf == from_leaf) return output.queue.Add(std::move(frame), output.link.rate, now);
  const size_t spine = frame.flow() % spines_.size();
  uplinks_[UplinkOf(from_leaf, spine)].up.Add(std::move(frame), spines_[spine].rate, now);
}

bool PacketSwitch::IsLost(const Link& link, int64_t* random_losses) {
  const bool lost = link.loss > 0 && std::uniform_real_distribution<double>()(random_) < link.loss;
  *random_losses += lost ? 1 : 0;
  return lost;
}

}  // namespace jaxcomm
