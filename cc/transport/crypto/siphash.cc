#include "cc/transport/crypto/siphash.h"

#include <cstring>

namespace jaxcomm {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

uint64_t Rotate(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

// Loads up to 8 bytes as a little-endian number.
uint64_t Load(const void* from, size_t size) {
  uint64_t word = 0;
  std::memcpy(&word, from, size);
  return word;
}

struct State {
  uint64_t a, b, c, d;

  void Round() {
    a += b;
    b = Rotate(b, 13) ^ a;
    a = Rotate(a, 32);
    c += d;
    d = Rotate(d, 16) ^ c;
    a += d;
    d = Rotate(d, 21) ^ a;
    c += b;
    b = Rotate(b, 17) ^ c;
    c = Rotate(c, 32);
  }
  void Take(uint64_t word) {
    d ^= word;
    Round();
    Round();
    a ^= word;
  }
};

}  // namespace

uint64_t SipHash(const SipKey& key, const std::byte* head, size_t head_bytes, const std::byte* body,
                 size_t body_bytes) {
  const uint64_t low = Load(key.data(), 8), high = Load(key.data() + 8, 8);
  State state{low ^ 0x736f6d6570736575, high ^ 0x646f72616e646f6d, low ^ 0x6c7967656e657261, high ^ 0x7465646279746573};
  for (size_t at = 0; at < head_bytes; at += 8) state.Take(Load(head + at, 8));
  size_t at = 0;
  for (; at + 8 <= body_bytes; at += 8) state.Take(Load(body + at, 8));
  state.Take(Load(body + at, body_bytes - at) | static_cast<uint64_t>(head_bytes + body_bytes) << 56);
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.Round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

}  // namespace jaxcomm
