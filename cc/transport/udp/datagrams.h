// Sends or receives many packets with one system call, over a connected UDP socket.
//
//   Status status = PrepareDatagrams(socket, &options);
//   const size_t taken = SendDatagrams(socket, bytes, sizes, {0, true}, &options);   // `bytes`: contiguous packets
//   for (const Datagram& packet : received.Receive(socket)) ...   // `packet` is valid until the next Receive
//
// If the kernel can split and join packets (UDP_SEGMENT, UDP_GRO), it handles several packets as one. No function
// blocks.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

// The part of a packet's IP header that switches read. Source: Wang et al., "Towards Domain-Specific Network Transport
// for Distributed DNN Training" (MLT), section 5.2.
struct TrafficClass {
  static constexpr uint32_t kQueues = 8;

  uint8_t queue = 0;         // the three highest bits; switches serve the highest queue first
  bool is_important = true;  // important packets are marked ECN-capable

  int byte() const { return queue << 5 | (is_important ? 0x02 : 0x00); }
};

// The capabilities of a socket.
struct DatagramOptions {
  bool is_ipv6 = false;
  bool may_batch = true;  // the kernel can split and join packets
  bool may_mark = true;   // the kernel accepts a TrafficClass for each packet
};

// Fails if `socket` is not a connected UDP socket.
Status PrepareDatagrams(int socket, DatagramOptions* options);

// Returns the number of packets sent. Packets remain unsent only if the kernel accepts no more for now. A packet that
// the kernel refuses for another reason counts as sent, and is lost.
size_t SendDatagrams(int socket, const std::byte* bytes, const std::vector<size_t>& sizes, TrafficClass traffic_class,
                     DatagramOptions* options);

struct Datagram {
  std::byte* bytes;  // the receiver may change them
  size_t size;
  int64_t arrived;  // time of arrival, in nanoseconds of WallClock()
};

class ReceivedDatagrams {
 public:
  ReceivedDatagrams();

  // Returns some of the packets that have arrived, or an empty vector if there are none.
  const std::vector<Datagram>& Receive(int socket);
  // Returns whether more packets may have arrived than the last Receive returned.
  bool may_have_more() const { return may_have_more_; }

 private:
  static constexpr size_t kSlots = 16, kSlotBytes = 65536, kControlBytes = 128;

  const std::unique_ptr<std::byte[]> memory_;
  std::vector<Datagram> datagrams_;
  bool may_have_more_ = false;
};

// Returns the time in nanoseconds, by the clock with which the kernel stamps packets.
int64_t WallClock();

}  // namespace jaxcomm
