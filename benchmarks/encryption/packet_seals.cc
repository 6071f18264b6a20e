// The CPU time for sealing and opening one packet: a tag by SipHash, a tag by AES-GMAC, and encryption by AES-GCM.
//
//   packet_seals [bytes...]   // of packets; ns for each packet, the median of 101 runs by turns
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cc/transport/udp/packet.h"

namespace jaxcomm {
namespace {

constexpr int kRuns = 101, kPackets = 200;  // packets of a run
constexpr SipKey kTagKey = {1};
constexpr CipherKey kKey = {1};

struct Way {
  const char* name;
  PacketSeals seals;
  std::vector<double> times;
};

PacketSeals Make(SealKind kind) { return std::move(PacketSeals::Make({kind, kTagKey, kTagKey, {kKey, kKey}}).value()); }

void Measure(size_t size) {
  std::vector<std::byte> packet(size, std::byte{7});
  Way ways[] = {{"tag by SipHash", Make(SealKind::kSipHash), {}},
                {"tag by AES-GMAC", Make(SealKind::kGmac), {}},
                {"encryption by AES-GCM", Make(SealKind::kGcm), {}}};
  uint64_t number = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (Way& way : ways) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kPackets; ++i) {
        way.seals.packets.Seal({PacketKind::kMessage, false, ++number, 1, 2, 3, 4}, packet.data(), size);
        if (!way.seals.arrivals.Open(packet.data(), size)) std::abort();
      }
      const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
      way.times.push_back(time.count() / kPackets);
    }
  }
  for (Way& way : ways) {
    std::sort(way.times.begin(), way.times.end());
    std::printf("%6zu B  %-22s %7.0f ns (least %.0f)\n", size, way.name, way.times[kRuns / 2], way.times[0]);
  }
}

}  // namespace
}  // namespace jaxcomm

int main(int count, char** arguments) {
  if (count == 1) {
    for (const size_t size : {1472, 8972}) jaxcomm::Measure(size);
  }
  for (int i = 1; i < count; ++i) jaxcomm::Measure(static_cast<size_t>(std::atoll(arguments[i])));
}
