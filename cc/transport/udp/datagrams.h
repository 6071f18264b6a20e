// Many packets with one system call, over a connected UDP socket.
//
//   Status status = PrepareDatagrams(socket, &options);
//   const size_t taken = SendDatagrams(socket, bytes, sizes, kImportant, &options);   // one behind the other
//   for (const Datagram& packet : received.Receive(socket)) ...             // valid until the next call
//
// What the kernel can cut into packets, or join from packets (UDP_SEGMENT, UDP_GRO), goes as one through it. Nothing
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

// What switches read in a packet, in the IP header's byte for it: the three highest bits are its queue, the highest of
// which goes first, and what is no important packet does not call itself ECN-capable.
// Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 5.2.
enum class TrafficClass : uint8_t {
  kOrdinary = 0x00,
  kImportant = 0x02,
  kUrgent = 0xC2,  // important, and before all others
};

// What is known of a socket.
struct DatagramOptions {
  bool is_ipv6 = false;
  bool may_batch = true;  // the kernel cuts and joins packets
  bool may_mark = true;   // it lets packets say of which class they are
};

// An error: it is no connected UDP socket.
Status PrepareDatagrams(int socket, DatagramOptions* options);

// How many packets are gone: all, unless the kernel takes no more for now. Those that it refuses for another reason are
// lost.
size_t SendDatagrams(int socket, const std::byte* bytes, const std::vector<size_t>& sizes, TrafficClass traffic_class,
                     DatagramOptions* options);

struct Datagram {
  const std::byte* bytes;
  size_t size;
  int64_t arrived;  // as WallClock() says
};

class ReceivedDatagrams {
 public:
  ReceivedDatagrams();

  // Some of those that have come; none: no more have.
  const std::vector<Datagram>& Receive(int socket);
  // Whether more may have come than the last call returned.
  bool may_have_more() const { return may_have_more_; }

 private:
  static constexpr size_t kSlots = 16, kSlotBytes = 65536, kControlBytes = 128;

  const std::unique_ptr<std::byte[]> memory_;
  std::vector<Datagram> datagrams_;
  bool may_have_more_ = false;
};

// Nanoseconds, of the clock by which the kernel says when packets came.
int64_t WallClock();

}  // namespace jaxcomm
