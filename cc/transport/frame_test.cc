#include "cc/transport/frame.h"

#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(FrameTest, FieldsHaveFixedPlaces) {
  const MessageId id{{0x1122334455667788, 0x01020304, 5, 6}, 7, 8, 9, 0x80000000, /*call_bytes=*/0};
  std::byte header[kHeaderBytes];
  EncodeHeader({FrameType::kMessage, 0x00030B0C, id}, header);
  const uint8_t fields[] = {'j',  'c',  'M',  '1',  0x0C, 0x0B, 0x03, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22,
                            0x11, 0x04, 0x03, 0x02, 0x01, 5,    0,    0, 0,    6,    0,    0,    0,    7,    0,
                            0,    0,    8,    0,    0,    0,    9,    0, 0,    0,    0,    0,    0,    0x80};
  static_assert(sizeof(fields) == kHeaderBytes);
  EXPECT_EQ(std::memcmp(header, fields, sizeof(fields)), 0);
  const Result<Header> decoded = DecodeHeader(header);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_TRUE(decoded.value().id == id);
  EXPECT_EQ(decoded.value().bytes, 0x00030B0Cu);
}

}  // namespace
}  // namespace jaxcomm
