// Words that errors have in common, whatever runs the call.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace jaxcomm {

// "16 MiB"
inline std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g %s", value, kUnits[unit]);
  return text;
}

// "60.0 s"
inline std::string FormatSeconds(std::chrono::steady_clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

// "0,1,4", of a vector or a set.
template <typename Ranks>
std::string JoinRanks(const Ranks& ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

}  // namespace jaxcomm
