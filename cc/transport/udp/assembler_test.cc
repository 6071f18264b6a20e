#include "cc/transport/udp/assembler.h"

#include <algorithm>
#include <vector>

#include "cc/transport/callbacks.h"
#include "cc/transport/testing/recorded_events.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr size_t kFragment = 1 << 10;

// Feeds an assembler with the packets of one process.
class AssemblerTest : public testing::Test {
 protected:
  // Sends a notice of maximal size with number `frame`. Returns whether all of its packets were taken.
  bool SendNotice(uint64_t frame) {
    Bytes bytes(kHeaderBytes + Transport::kMaxNotice);
    EncodeHeader({FrameType::kNotice, static_cast<uint32_t>(Transport::kMaxNotice), MessageId()}, bytes.data());
    bool is_taken = true;
    for (size_t offset = 0; offset < bytes.size(); offset += kFragment) {
      const PacketHeader packet = {
          PacketKind::kOrdered,
          /*asks=*/false,       number_++, frame, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes.size())};
      const Status status =
          assembler_.Take(packet, bytes.data() + offset, std::min(kFragment, bytes.size() - offset), /*arrived=*/1);
      EXPECT_TRUE(status.ok()) << status.message();
      PacketHeader answer;
      std::byte bits[kAnswerBytes];
      assembler_.Answer(/*now=*/1, &answer, bits);
      is_taken = is_taken && (bits[0] & std::byte{1}) != std::byte{0};
    }
    while (!callbacks_.empty()) {
      callbacks_.Begin()();
      callbacks_.End();
    }
    return is_taken;
  }

  RecordedEvents events_{0};
  Callbacks callbacks_;
  Inbox inbox_{&events_, &callbacks_};
  Assembler assembler_{1, kFragment, &inbox_};
  uint64_t number_ = 0;
};

TEST_F(AssemblerTest, NoticesBehindOneThatIsMissingFindRoomForSoManyBytesOnly) {
  std::vector<uint64_t> refused;
  for (uint64_t frame = 1; frame < kMaxFrames; ++frame) {
    if (!SendNotice(frame)) refused.push_back(frame);
    ASSERT_LE(assembler_.kept(), Assembler::kMaxKept);
  }
  EXPECT_EQ(refused.size(), kMaxFrames - 1 - Assembler::kMaxKept / (kHeaderBytes + Transport::kMaxNotice));
  EXPECT_TRUE(SendNotice(0));
  for (const uint64_t frame : refused) EXPECT_TRUE(SendNotice(frame));
  EXPECT_EQ(events_.AwaitNotices(1, kMaxFrames).size(), kMaxFrames);
  EXPECT_EQ(assembler_.kept(), 0);
}

}  // namespace
}  // namespace jaxcomm
