#include "cc/testbed/packet_switch.h"

#include <algorithm>
#include <utility>

namespace jaxcomm {
namespace {

constexpr size_t kMostAtOnce = 256;  // maximum number of arrivals and departures in one Run

}  // namespace

PacketSwitch::PacketSwitch(const std::vector<Port>& ports, const QueueLimits& limits, Taps* taps) : taps_(taps) {
  for (const Port& port : ports) {
    port_of_[port.address] = ports_.size();
    ports_.push_back({port.link, OutputQueue(limits), {}, kNever, 0, 0});
  }
}

int64_t PacketSwitch::Run(int64_t since, int64_t now) {
  if (ports_.empty()) return kNever;
  for (size_t port = 0; port < ports_.size(); ++port) {
    if (!IsReceiving(port)) Receive(port, since);
  }
  for (size_t done = 0;; ++done) {
    size_t sender = 0, receiver = 0;
    for (size_t port = 1; port < ports_.size(); ++port) {
      if (ports_[port].queue.departure() < ports_[sender].queue.departure()) sender = port;
      if (ports_[port].arrival < ports_[receiver].arrival) receiver = port;
    }
    const int64_t departure = ports_[sender].queue.departure(), arrival = ports_[receiver].arrival;
    const int64_t next = std::min(departure, arrival);
    if (next > now || done == kMostAtOnce) return next;
    if (departure <= arrival) {  // departures first, because they make room
      Depart(sender);
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
  if (to != port_of_.end() && to->second != port && !IsLost(&side)) {
    Side& output = ports_[to->second];
    output.queue.Add(std::move(side.incoming), output.link.rate, side.arrival);
  }
  Receive(port, since);
}

void PacketSwitch::Depart(size_t port) {
  Side& side = ports_[port];
  const Frame frame = side.queue.Depart(side.link.rate);
  if (!IsLost(&side)) taps_->Write(port, frame);
}

bool PacketSwitch::IsLost(Side* side) {
  const bool lost = side->link.loss > 0 && std::uniform_real_distribution<double>()(random_) < side->link.loss;
  side->random_losses += lost ? 1 : 0;
  return lost;
}

}  // namespace jaxcomm
