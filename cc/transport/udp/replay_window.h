// Remembers the numbers of arrived packets, so that no packet is taken twice, and so that acknowledgements can list the
// missing packets.
//
//   if (window.IsNew(number)) { window.See(number); ... window.Take(number); }
//   window.Bits(bits);   // bit i: whether packet newest() - i was taken
//
// See records that a packet has arrived. Take records that the packet's bytes have been stored. Only the newest
// kRemembered numbers are remembered. IsNew returns false for older numbers.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "cc/transport/udp/packet.h"

namespace jaxcomm {

class ReplayWindow {
 public:
  static constexpr uint64_t kRemembered = 8192;

  bool IsNew(uint64_t number) const {
    if (!any_ || number > newest_) return true;
    return newest_ - number < kRemembered && !taken_[number % kRemembered];
  }
  // A packet that was seen counts as missing until Take, because there may have been no room for its bytes.
  void See(uint64_t number) {
    if (any_ && number <= newest_) return;
    const uint64_t steps = any_ ? number - newest_ : kRemembered;
    if (steps >= kRemembered) {
      taken_.reset();
    } else {
      for (uint64_t i = 0; i < steps; ++i) taken_[(number - i) % kRemembered] = false;
    }
    newest_ = number;
    any_ = true;
  }
  void Take(uint64_t number) { taken_[number % kRemembered] = true; }

  uint64_t newest() const { return newest_; }
  bool any() const { return any_; }

  // Writes the bits of the newest kAnsweredPackets numbers.
  void Bits(std::byte (&bits)[kAnswerBytes]) const {
    for (size_t i = 0; i < kAnsweredPackets; ++i) {
      if (i % 8 == 0) bits[i / 8] = std::byte{0};
      if (i <= newest_ && taken_[(newest_ - i) % kRemembered]) bits[i / 8] |= static_cast<std::byte>(1 << (i % 8));
    }
  }

 private:
  std::bitset<kRemembered> taken_;
  uint64_t newest_ = 0;
  bool any_ = false;
};

}  // namespace jaxcomm
