#include "cc/ffi/groups.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace jaxcomm {
namespace {

Result<std::vector<Group>> Parse(const std::string& programs, const std::vector<int32_t>& devices,
                                 const std::vector<int32_t>& sizes) {
  return ParseGroups("psum over 'data'", programs, {devices.data(), devices.size()}, {sizes.data(), sizes.size()});
}

TEST(GroupsTest, DealsDevicesAndProgramsToGroups) {
  const Result<std::vector<Group>> groups = Parse("two,,three,", {4, 0, 7, 1, 2, 3}, {2, 1, 3});
  ASSERT_TRUE(groups.ok()) << groups.status().message();
  ASSERT_EQ(groups.value().size(), 3u);
  EXPECT_EQ(groups.value()[0].program, "two");
  EXPECT_EQ(groups.value()[0].devices, (std::vector<int32_t>{4, 0}));
  EXPECT_EQ(groups.value()[1].program, "");
  EXPECT_EQ(groups.value()[1].devices, std::vector<int32_t>{7});
  EXPECT_EQ(groups.value()[2].program, "three");
  EXPECT_EQ(groups.value()[2].devices, (std::vector<int32_t>{1, 2, 3}));
}

TEST(GroupsTest, SaysWhichGroupIsWrong) {
  EXPECT_EQ(Parse("a,", {0, 1, 2}, {2, 1}).status().message(),
            "psum over 'data': group 1 of 1 ranks lacks its program or its devices");
  EXPECT_EQ(Parse("a,b,", {0, 1, 2}, {2, 2}).status().message(),
            "psum over 'data': group 1 of 2 ranks lacks its program or its devices");
  EXPECT_EQ(Parse("a,", {0, 1}, {-2}).status().message(),
            "psum over 'data': group 0 of -2 ranks lacks its program or its devices");
  EXPECT_EQ(Parse("a,", {0, -1}, {2}).status().message(), "psum over 'data': device id -1 is negative");
  EXPECT_EQ(Parse("a,", {0, 1, 2}, {2}).status().message(),
            "psum over 'data': more devices than its groups have ranks");
}

}  // namespace
}  // namespace jaxcomm
