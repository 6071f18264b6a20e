// The FNV-1a hash of a text, the same in all processes. Detects accidental differences between texts; does not resist
// deliberate collisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace jaxcomm {

inline uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001B3;
  return hash;
}

}  // namespace jaxcomm
