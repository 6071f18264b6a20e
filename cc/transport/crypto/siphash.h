// Computes SipHash-2-4 of bytes under a key. Nobody can compute the hash without the key.
//
//   const uint64_t tag = SipHash(key, head, head_bytes, body, body_bytes);   // the hash of `head` followed by `body`
//
// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace jaxcomm {

using SipKey = std::array<uint8_t, 16>;

// `head_bytes` is a multiple of 8.
uint64_t SipHash(const SipKey& key, const std::byte* head, size_t head_bytes, const std::byte* body, size_t body_bytes);

}  // namespace jaxcomm
