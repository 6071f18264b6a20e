// Many packets with one system call, over a connected UDP socket.
//
//   Status status = PrepareDatagrams(socket, &options);
//   const size_t taken = SendDatagrams(socket, bytes, sizes, kImportant, &options);   // one behind the other
//   for (const Datagram& packet : received.Receive(socket)) ...             // valid until the next call
//
// Packets that the kernel can cut apart or join (UDP_SEGMENT, UDP_GRO) go through it as one. No function blocks.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

// The byte of a packet's IP header that switches read: its three highest bits are the packet's queue, of which the
// highest goes first; important packets are marked ECN-capable. Source: Wang et al., "Towards Domain-Specific Network
// Transport for Distributed DNN Training", section 5.2.
enum class TrafficClass : uint8_t {
  kOrdinary = 0x00,
  kImportant = 0x02,
  kUrgent = 0xC2,  // important, and before all others
};

// The capabilities of a socket.
struct DatagramOptions {
  bool is_ipv6 = false;
  bool may_batch = true;  // the kernel cuts and joins packets
  bool may_mark = true;   // it lets packets say of which class they are
};

// An error: it is no connected UDP socket.
Status PrepareDatagrams(int socket, DatagramOptions* options);

// Returns the number of packets sent: all, unless the kernel takes no more for now. A packet that it refuses for
// another reason is lost.
size_t SendDatagrams(int socket, const std::byte* bytes, const std::vector<size_t>& sizes, TrafficClass traffic_class,
                     DatagramOptions* options);

struct Datagram {
  const std::byte* bytes;
  size_t size;
  int64_t arrived;  // by WallClock()
};

class ReceivedDatagrams {
 public:
  ReceivedDatagrams();

  // Some of the packets that have come; empty: no more have.
  const std::vector<Datagram>& Receive(int socket);
  // Whether packets may have come beyond those of the last call.
  bool may_have_more() const { return may_have_more_; }

 private:
  static constexpr size_t kSlots = 16, kSlotBytes = 65536, kControlBytes = 128;

  const std::unique_ptr<std::byte[]> memory_;
  std::vector<Datagram> datagrams_;
  bool may_have_more_ = false;
};

// Nanoseconds, of the clock with which the kernel stamps packets.
int64_t WallClock();

}  // namespace jaxcomm
