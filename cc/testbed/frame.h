// An Ethernet frame, and the fields that a switch reads in it.
//
//   const Frame frame{bytes};
//   queues[frame.priority()]; frame.important();
//
// The priority is the class selector, which is the three highest bits of the DSCP. ECN-capable frames are important;
// see Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 5.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxcomm {

struct Frame {
  static constexpr size_t kHeaderBytes = 14;

  std::vector<std::byte> bytes;

  int64_t size() const { return static_cast<int64_t>(bytes.size()); }
  // The destination's MAC address as a number; 0 if the frame has no header.
  uint64_t destination() const {
    uint64_t address = 0;
    for (size_t i = 0; i < 6 && bytes.size() >= kHeaderBytes; ++i) address = address << 8 | Byte(i);
    return address;
  }
  size_t priority() const { return TrafficClass() >> 5; }
  bool important() const { return (TrafficClass() & 3) != 0; }

 private:
  uint64_t Byte(size_t i) const { return std::to_integer<uint64_t>(bytes[i]); }

  // DSCP and ECN; 0 if this is not an IP packet.
  uint64_t TrafficClass() const {
    if (bytes.size() < kHeaderBytes + 2) return 0;
    switch (Byte(12) << 8 | Byte(13)) {
      case 0x0800:
        return Byte(15);
      case 0x86dd:
        return (Byte(14) & 0xf) << 4 | Byte(15) >> 4;
      default:
        return 0;
    }
  }
};

}  // namespace jaxcomm
