// Functions for the texts of errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace jaxcomm {

// Returns, for instance, "16 MiB".
inline std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g %s", value, kUnits[unit]);
  return text;
}

// Returns, for instance, "60.0 s".
inline std::string FormatSeconds(std::chrono::steady_clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

// Returns the size in bytes of the UTF-8 character at the start of a text, or 0 if that character is not valid.
inline size_t LetterBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const size_t size = byte(0) < 0x80 ? 1 : byte(0) < 0xC2 ? 0 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  if (size == 0 || byte(0) > 0xF4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool is_long = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xF0 && byte(1) < 0x90);
  const bool is_none = (byte(0) == 0xED && byte(1) > 0x9F) || (byte(0) == 0xF4 && byte(1) > 0x8F);
  return is_long || is_none ? 0 : size;
}

// Returns the beginning of a text, at most `most` bytes, cut between two characters.
inline std::string_view CutText(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// Returns the text with '?' in place of every byte that belongs to no valid UTF-8 character.
inline std::string ValidText(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t size = LetterBytes(text);
    valid += size > 0 ? text.substr(0, size) : "?";
    text.remove_prefix(size > 0 ? size : 1);
  }
  return valid;
}

// Returns "0,1,4" for a vector or a set. With more than eight ranks, consecutive ranks become a range: "0-2,4-127".
template <typename Ranks>
std::string JoinRanks(const Ranks& ranks) {
  std::string text;
  for (auto at = ranks.begin(); at != ranks.end();) {
    const uint32_t first = *at;
    uint32_t last = first;
    for (++at; ranks.size() > 8 && at != ranks.end() && *at == last + 1; ++at) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += (last > first + 1 ? "-" : ",") + std::to_string(last);
  }
  return text;
}

}  // namespace jaxcomm
