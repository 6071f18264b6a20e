#include "cc/base/little_endian.h"

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::string_literals::operator""s;

TEST(LittleEndianTest, TheLowestByteIsFirst) {
  std::string bytes = "x";
  AppendNumber<uint8_t>(bytes, 0xFE);
  AppendNumber<uint32_t>(bytes, 0x01020304);
  AppendNumber<uint64_t>(bytes, 0x1122334455667788);
  EXPECT_EQ(bytes, "x\xFE\x04\x03\x02\x01\x88\x77\x66\x55\x44\x33\x22\x11"s);
  std::byte stored[4];
  StoreNumber<uint32_t>(0x80000001, stored);
  EXPECT_EQ(stored[0], std::byte{0x01});
  EXPECT_EQ(stored[3], std::byte{0x80});
  EXPECT_EQ(LoadNumber<uint32_t>(stored), 0x80000001);
}

TEST(LittleEndianTest, NothingIsReadBeyondTheEnd) {
  std::string bytes;
  AppendNumber<uint64_t>(bytes, 5);
  AppendNumber<uint32_t>(bytes, 6);
  bytes += "rest";
  NumberReader reader(bytes);
  EXPECT_EQ(reader.Get<uint64_t>(), 5u);
  EXPECT_EQ(reader.Get<uint32_t>(), 6u);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.rest(), "rest");
  EXPECT_EQ(reader.Take(5), nullptr);
  EXPECT_EQ(reader.Get<uint8_t>(), 0u);  // zero after the failed read, although a byte is left
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.rest(), "rest");
}

}  // namespace
}  // namespace jaxcomm
