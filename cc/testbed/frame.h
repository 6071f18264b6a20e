// An Ethernet frame, and the fields that a switch reads in it.
//
//   const Frame frame{bytes};
//   queues[frame.priority()]; frame.important(); spines[frame.flow() % spines.size()];
//
// The priority is the class selector, which is the three highest bits of the DSCP. ECN-capable frames are important;
// see Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 5.2.
#pragma once

#include <algorithm>
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
  // Returns the hash by which switches spread flows over equal paths (ECMP). The hash covers the addresses, the
  // protocol and the ports of an IP packet; fragments have no ports. Returns 0 if this is not an IP packet.
  uint64_t flow() const;

 private:
  bool IsIp(uint64_t type, size_t least) const {
    return bytes.size() >= kHeaderBytes + least && (Byte(12) << 8 | Byte(13)) == type;
  }
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

inline uint64_t Frame::flow() const {
  constexpr size_t kLeastIpv4 = 20, kIpv6 = 40;
  constexpr uint64_t kTcp = 6, kUdp = 17;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](size_t begin, size_t size) {
    for (size_t i = begin; i < std::min(begin + size, bytes.size()); ++i) hash = (hash ^ Byte(i)) * 0x100000001b3;
  };
  if (IsIp(0x0800, kLeastIpv4)) {
    const bool is_fragment = ((Byte(20) & 0x3f) | Byte(21)) != 0;
    add(26, 8);
    add(23, 1);
    if (!is_fragment && (Byte(23) == kTcp || Byte(23) == kUdp)) add(kHeaderBytes + 4 * (Byte(14) & 0xf), 4);
  } else if (IsIp(0x86dd, kIpv6)) {
    add(22, 32);
    add(20, 1);
    if (Byte(20) == kTcp || Byte(20) == kUdp) add(kHeaderBytes + kIpv6, 4);
  } else {
    return 0;
  }
  // Applies the last step of MurmurHash3, because each low bit of an FNV hash depends only on low bits of the input.
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
  return hash ^ (hash >> 33);
}

}  // namespace jaxcomm
