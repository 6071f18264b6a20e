#include "cc/transport/udp/packet.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "cc/transport/udp/replay_window.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr SipKey kKey = {1, 2, 3};

TEST(PacketTest, OnlySealedPacketsAreOpened) {
  for (const size_t payload : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{1368}}) {
    std::vector<std::byte> packet(kPacketHeaderBytes + payload, std::byte{9});
    const PacketHeader header{PacketKind::kOrdered,
                              payload % 2 == 0,
                              (uint64_t{1} << 48) - 1,
                              (uint64_t{1} << 48) - 1,
                              77,
                              1 << 20,
                              UINT16_MAX};
    SealPacket(header, kKey, packet.data(), packet.size());
    EXPECT_EQ(OpenPacket(packet.data(), packet.size(), kKey), header);
    SipKey other = kKey;
    other[15] ^= 1;
    EXPECT_FALSE(OpenPacket(packet.data(), packet.size(), other));
    EXPECT_FALSE(OpenPacket(packet.data(), packet.size() - 1, kKey));
    for (size_t i = 0; i < packet.size(); ++i) {
      packet[i] ^= std::byte{0x10};
      EXPECT_FALSE(OpenPacket(packet.data(), packet.size(), kKey)) << i;
      packet[i] ^= std::byte{0x10};
    }
  }
}

constexpr PacketHeader kHeader{PacketKind::kMessage, true, 7, 8, 77, 1 << 20, 9};

class SealsTest : public testing::TestWithParam<SealKind> {
 protected:
  void SetUp() override {
    if (!Libcrypto::Get().ok()) GTEST_SKIP() << "this machine has no libcrypto";
    own_.emplace(std::move(PacketSeals::Make({GetParam(), kKey, kOther, {kUp, kDown}}).value()));
    other_.emplace(std::move(PacketSeals::Make({GetParam(), kOther, kKey, {kDown, kUp}}).value()));
  }

  std::vector<std::byte> Sealed(const PacketHeader& header, size_t payload) {
    std::vector<std::byte> packet(kPacketHeaderBytes + payload + own_->packets.trailer_bytes(), std::byte{'x'});
    PacketSealer& sealer = header.kind == PacketKind::kAnswer ? own_->answers : own_->packets;
    sealer.Seal(header, packet.data(), packet.size());
    return packet;
  }
  bool Opens(std::vector<std::byte> packet) { return other_->arrivals.Open(packet.data(), packet.size()).has_value(); }

  static constexpr SipKey kOther = {5};
  static constexpr CipherKey kUp = {1}, kDown = {2};
  std::optional<PacketSeals> own_, other_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, SealsTest, testing::Values(SealKind::kSipHash, SealKind::kGmac, SealKind::kGcm));

TEST_P(SealsTest, OnlyUnchangedPacketsOfTheOtherProcessAreOpened) {
  for (const size_t payload : {size_t{0}, size_t{1}, size_t{100}}) {
    std::vector<std::byte> packet = Sealed(kHeader, payload);
    EXPECT_FALSE(own_->arrivals.Open(packet.data(), packet.size()).has_value());
    packet = Sealed(kHeader, payload);
    for (size_t bit = 0; bit < 8 * packet.size(); ++bit) {
      packet[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(Opens(packet)) << bit;
      packet[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    for (size_t size = 0; size < packet.size(); ++size) EXPECT_FALSE(Opens({packet.begin(), packet.begin() + size}));
    ASSERT_EQ(other_->arrivals.Open(packet.data(), packet.size()), kHeader);
    for (size_t i = 0; i < payload; ++i) EXPECT_EQ(packet[kPacketHeaderBytes + i], std::byte{'x'});
  }
}

TEST_P(SealsTest, OnlyEncryptionHidesThePayload) {
  const std::vector<std::byte> packet = Sealed(kHeader, 1000), run(4, std::byte{'x'});
  const auto found = std::search(packet.begin(), packet.end(), run.begin(), run.end());
  EXPECT_EQ(found == packet.end(), GetParam() == SealKind::kGcm);
}

TEST_P(SealsTest, EqualPayloadsAreSealedUnlike) {
  PacketHeader next = kHeader, answer = kHeader;
  ++next.number;
  answer.kind = PacketKind::kAnswer;  // acknowledgements have numbers of their own
  for (const PacketHeader& header : {next, answer}) {
    EXPECT_TRUE(Opens(Sealed(header, 1000)));
    if (GetParam() != SealKind::kGcm) continue;
    const std::vector<std::byte> one = Sealed(kHeader, 1000), other = Sealed(header, 1000);
    EXPECT_FALSE(std::equal(one.begin() + kPacketHeaderBytes, one.begin() + 100, other.begin() + kPacketHeaderBytes));
  }
}

TEST_P(SealsTest, PacketsAreOpenedAcrossChangesOfTheKey) {
  constexpr uint64_t kFew = 16;
  own_.emplace(std::move(PacketSeals::Make({GetParam(), kKey, kOther, {kUp, kDown}}, kFew).value()));
  PacketSeals unchanged = std::move(*other_);
  other_.emplace(std::move(PacketSeals::Make({GetParam(), kOther, kKey, {kDown, kUp}}, kFew).value()));
  std::mt19937 random(1);
  PacketHeader header = kHeader, answer = kHeader;
  answer.kind = PacketKind::kAnswer;
  header.number = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<std::byte>> reordered;
    for (uint64_t i = 0; i < kFew / 2; ++i, ++header.number) reordered.push_back(Sealed(header, 100));
    ++answer.number;
    reordered.push_back(Sealed(answer, kAnswerBytes));
    std::shuffle(reordered.begin(), reordered.end(), random);
    for (const std::vector<std::byte>& packet : reordered) EXPECT_TRUE(Opens(packet)) << round;
  }
  std::vector<std::byte> last = Sealed(header, 100);
  EXPECT_EQ(unchanged.arrivals.Open(last.data(), last.size()).has_value(), GetParam() == SealKind::kSipHash);
  header.number -= kFew;  // a packet that the kernel has refused may be sent after packets with the next key
  EXPECT_TRUE(Opens(Sealed(header, 100)));
}

TEST(PacketTest, FieldsHaveFixedPlaces) {
  std::byte packet[kPacketHeaderBytes];
  SealPacket({PacketKind::kProbe, /*asks=*/true, 0x11223344556677, 0xAABBCCDDEEFF, 0x12345678, 0x9ABCDEF0, 0x8899},
             kKey, packet, sizeof(packet));
  const uint8_t fields[] = {0x83, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xFF, 0xEE, 0xDD, 0xCC,
                            0xBB, 0xAA, 0x99, 0x88, 0x78, 0x56, 0x34, 0x12, 0xF0, 0xDE, 0xBC, 0x9A};
  EXPECT_EQ(std::memcmp(packet, fields, sizeof(fields)), 0);
}

TEST(PacketTest, UnknownKindsAreRefused) {
  std::vector<std::byte> packet(kPacketHeaderBytes);
  for (const int kind : {0, 6, 127}) {
    SealPacket({static_cast<PacketKind>(kind), false, 1, 0, 0, 0}, kKey, packet.data(), packet.size());
    EXPECT_FALSE(OpenPacket(packet.data(), packet.size(), kKey)) << kind;
  }
}

// Compares the window with a plain list of all taken numbers.
TEST(ReplayWindowTest, TakesEachNumberOnce) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    std::mt19937_64 random(seed);
    ReplayWindow window;
    std::vector<bool> taken(200000);
    uint64_t newest = 0;
    bool any = false;
    for (int i = 0; i < 50000; ++i) {
      const uint64_t back = random() % 20000, ahead = random() % (random() % 50 ? 8 : 9000);
      const uint64_t number = random() % 2 ? newest + ahead : newest - std::min(newest, back);
      if (number >= taken.size()) break;
      const bool is_new = !any || number > newest || (newest - number < ReplayWindow::kRemembered && !taken[number]);
      ASSERT_EQ(window.IsNew(number), is_new) << number << " after " << newest;
      if (!is_new) continue;
      window.See(number);
      newest = std::max(newest, number);
      any = true;
      if (random() % 5) {
        window.Take(number);
        taken[number] = true;
      }
    }
    EXPECT_EQ(window.newest(), newest);
    std::byte bits[kAnswerBytes];
    window.Bits(bits);
    for (uint64_t i = 0; i < kAnsweredPackets; ++i) {
      const bool bit = (bits[i / 8] & static_cast<std::byte>(1 << (i % 8))) != std::byte{0};
      EXPECT_EQ(bit, i <= newest && taken[newest - i]) << i;
    }
  }
}

}  // namespace
}  // namespace jaxcomm
