// Counts the packets of a fuzzer, and prints their number when the fuzzer ends.
//
//   ++fuzzed_packets;
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>

namespace jaxcomm {

class FuzzedPackets {
 public:
  ~FuzzedPackets() { std::fprintf(stderr, "packets: %" PRIu64 "\n", count_); }
  void operator++() { ++count_; }

 private:
  uint64_t count_ = 0;
};

inline FuzzedPackets fuzzed_packets;

}  // namespace jaxcomm
