#include "cc/transport/crypto/siphash.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// The vectors_sip64 of the authors' reference implementation. The key is 00 01 … 0f, and message i is 00 01 … i-1.
TEST(SipHashTest, PublishedVectors) {
  const std::pair<size_t, uint64_t> vectors[] = {
      {0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd},  {2, 0x0d6c8009d9a94f5a},  {3, 0x85676696d7fb7e2d},
      {4, 0xcf2794e0277187b7}, {5, 0x18765564cd99a68d},  {6, 0xcbc9466e58fee3ce},  {7, 0xab0200f58b01d137},
      {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}, {63, 0x958a324ceb064572},
  };
  SipKey key;
  std::vector<std::byte> message;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < 64; ++i) message.push_back(static_cast<std::byte>(i));
  for (const auto& [size, hash] : vectors) {
    for (size_t head = 0; head <= size; head += 8) {
      EXPECT_EQ(SipHash(key, message.data(), head, message.data() + head, size - head), hash) << size;
    }
  }
}

TEST(SipHashTest, EveryBitCounts) {
  SipKey key{};
  std::vector<std::byte> message(100);
  const uint64_t hash = SipHash(key, nullptr, 0, message.data(), message.size());
  EXPECT_NE(SipHash(key, nullptr, 0, message.data(), message.size() - 1), hash);
  for (size_t i = 0; i < message.size(); ++i) {
    message[i] = std::byte{1};
    EXPECT_NE(SipHash(key, nullptr, 0, message.data(), message.size()), hash) << i;
    message[i] = std::byte{0};
  }
  key[15] = 1;
  EXPECT_NE(SipHash(key, nullptr, 0, message.data(), message.size()), hash);
}

}  // namespace
}  // namespace jaxcomm
