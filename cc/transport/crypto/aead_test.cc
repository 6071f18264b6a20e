#include "cc/transport/crypto/aead.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr CipherKey kKey = {1, 2, 3};

Bytes OfHex(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

CipherKey KeyOfHex(const std::string& hex) {
  CipherKey key;
  const Bytes bytes = OfHex(hex);
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(bytes[i]);
  return key;
}

// Returns the encrypted bytes and then the tag.
Bytes Seal(Sealer& sealer, uint64_t number, const Bytes& head, const Bytes& text) {
  Bytes sealed(text.size() + kTagBytes);
  sealer.Begin(number, head.data(), head.size());
  sealer.Add(text.data(), text.size(), sealed.data());
  EXPECT_TRUE(sealer.End(sealed.data() + text.size()));
  return sealed;
}

bool Opens(Opener& opener, uint64_t number, const Bytes& head, Bytes sealed, Bytes* text) {
  const size_t bytes = sealed.size() - kTagBytes;
  opener.Begin(number, head.data(), head.size());
  opener.Add(sealed.data(), bytes, sealed.data());
  const bool is_genuine = opener.End(sealed.data() + bytes);
  sealed.resize(bytes);
  *text = std::move(sealed);
  return is_genuine;
}

class AeadTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Libcrypto::Get().ok()) GTEST_SKIP() << "this machine has no libcrypto";
  }
};

// Source: McGrew and Viega, "The Galois/Counter Mode of Operation", test case 4.
TEST_F(AeadTest, SealsAsThePublishedTestCaseDoes) {
  Sealer sealer = std::move(Sealer::Make(KeyOfHex("feffe9928665731c6d6a8f9467308308cafebabefacedbaddecaf888")).value());
  const Bytes text = OfHex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
      "ba637b39");
  EXPECT_EQ(
      Seal(sealer, 0, OfHex("feedfacedeadbeeffeedfacedeadbeefabaddad2"), text),
      OfHex(
          "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0a"
          "ac973d58e0915bc94fbc3221a5db94fae95ae7121a47"));
}

TEST_F(AeadTest, TheNumberIsPartOfTheNonce) {
  const Bytes text(40);
  Sealer sealer = std::move(Sealer::Make(kKey).value());
  CipherKey next = kKey;
  next[27] ^= 1;
  next[20] ^= 0x80;
  Sealer other = std::move(Sealer::Make(next).value());
  EXPECT_EQ(Seal(sealer, uint64_t{0x80} << 56 | 1, text, text), Seal(other, 0, text, text));
}

TEST_F(AeadTest, OnlyUnchangedBytesAreOpened) {
  Sealer sealer = std::move(Sealer::Make(kKey).value());
  Opener opener = std::move(Opener::Make(kKey).value());
  const Bytes head = {std::byte{7}, std::byte{8}};
  for (const size_t size : {size_t{0}, size_t{1}, size_t{16}, size_t{100}}) {
    const Bytes text(size, std::byte{9});
    const Bytes sealed = Seal(sealer, size, head, text);
    Bytes opened;
    ASSERT_TRUE(Opens(opener, size, head, sealed, &opened));
    EXPECT_EQ(opened, text);
    EXPECT_FALSE(Opens(opener, size + 1, head, sealed, &opened));
    for (size_t bit = 0; bit < 8 * (sealed.size() + head.size()); ++bit) {
      Bytes changed = sealed, changed_head = head;
      (bit / 8 < sealed.size() ? changed[bit / 8] : changed_head[bit / 8 - sealed.size()]) ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(Opens(opener, size, changed_head, changed, &opened)) << bit;
    }
    ASSERT_TRUE(Opens(opener, size, head, sealed, &opened));
  }
}

TEST_F(AeadTest, PartsAreSealedAsTheWhole) {
  Sealer sealer = std::move(Sealer::Make(kKey).value());
  Bytes text(1000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::byte>(i);
  const Bytes whole = Seal(sealer, 5, text, text);
  for (const size_t part : {size_t{1}, size_t{15}, size_t{17}, size_t{400}}) {
    Bytes sealed = text;
    sealed.resize(text.size() + kTagBytes);
    sealer.Begin(5, text.data(), text.size());
    for (size_t at = 0; at < text.size(); at += part) {
      sealer.Add(sealed.data() + at, std::min(part, text.size() - at), sealed.data() + at);
    }
    ASSERT_TRUE(sealer.End(sealed.data() + text.size()));
    EXPECT_EQ(sealed, whole);
  }
}

TEST_F(AeadTest, BothSidesChangeToTheSameOtherKey) {
  Sealer sealer = std::move(Sealer::Make(kKey).value());
  Opener opener = std::move(Opener::Make(kKey).value()), unchanged = std::move(Opener::Make(kKey).value());
  const Bytes text(50, std::byte{3});
  ASSERT_TRUE(sealer.ChangeKey());
  ASSERT_TRUE(opener.ChangeKey());
  Bytes opened;
  EXPECT_TRUE(Opens(opener, 1, text, Seal(sealer, 1, text, text), &opened));
  EXPECT_EQ(opened, text);
  EXPECT_FALSE(Opens(unchanged, 1, text, Seal(sealer, 1, text, text), &opened));
}

TEST(LibcryptoTest, AMissingLibraryIsAnErrorWithACure) {
  const Result<Libcrypto> library = Libcrypto::Load("libcrypto.so.none");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(
      library.status().message(),
      "messages cannot be encrypted: libcrypto.so.none: cannot open shared object file: No such file or directory."
      "\n  Cure: install OpenSSL 3 (Debian: apt install libssl3) on every host, or unset JAXCOMM_ENCRYPT");
  EXPECT_EQ(
      Libcrypto::Load("libc.so.6").status().message().find("messages cannot be encrypted: libc.so.6 lacks functions."),
      0u);
}

}  // namespace
}  // namespace jaxcomm
