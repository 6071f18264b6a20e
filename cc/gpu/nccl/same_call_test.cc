#include "cc/gpu/nccl/same_call.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

const std::string kName = "psum #7 over 'data' (16 MiB)";
const std::string kCure = ".\n  Cure: all ranks must run the same program, with the same shapes, dtypes and schedules.";

TEST(SameCall, EqualCallsMeet) {
  const CallHeader header = Header(7, kName, "sum;f32,1024");
  EXPECT_TRUE(CheckSameCall({header, Header(7, kName, "sum;f32,1024"), header}, 1).ok());
}

TEST(SameCall, AnotherNameNumberOrShapeIsNamedOnEveryRank) {
  const CallHeader mine = Header(7, kName, "sum");
  EXPECT_EQ(CheckSameCall({mine, Header(7, "pmax #7 over 'data' (16 MiB)", "max"), mine}, 0).message(),
            kName + ": rank 1 makes another call than rank 0: pmax #7 over 'data' (16 MiB)" + kCure);
  EXPECT_EQ(CheckSameCall({mine, Header(7, kName, "other"), Header(7, kName, "other")}, 0).message(),
            kName +
                ": ranks 1,2 make another call than rank 0: one of this name with other shapes, types or schedules" +
                kCure);
  EXPECT_FALSE(CheckSameCall({mine, Header(8, kName, "sum")}, 1).ok());
}

TEST(SameCall, ALongNameIsCutAndStillTold) {
  const std::string longest = "psum " + std::string(200, 'x');
  const CallHeader header = Header(1, longest, "");
  EXPECT_EQ(std::string(header.name), longest.substr(0, 111));
  EXPECT_FALSE(CheckSameCall({header, Header(1, longest + "y", "")}, 0).ok());
}

}  // namespace
}  // namespace jaxcomm::nccl
