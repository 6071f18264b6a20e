#include "cc/executor/messages/call_names.h"

#include <set>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

bool Nothing(uint32_t /*launch*/) { return false; }

TEST(CallNames, CountLaunchesOnACommunicatorAndExecutionsOfARank) {
  CallNames names;
  EXPECT_TRUE((names.Next(7, 500, 1, 0, Nothing) == CallId{7, 0, 1, 0}));
  EXPECT_TRUE((names.Next(7, 500, 1, 0, Nothing) == CallId{7, 0, 1, 1}));
  EXPECT_TRUE((names.Next(7, 500, 1, 2, Nothing) == CallId{7, 0, 1, 0}));
  EXPECT_TRUE((names.Next(7, 500, 3, 0, Nothing) == CallId{7, 0, 3, 0}));
  EXPECT_TRUE((names.Next(7, 400, 1, 0, Nothing) == CallId{7, 1, 1, 0}));
  EXPECT_TRUE((names.Next(8, 400, 1, 0, Nothing) == CallId{8, 0, 1, 0}));
}

TEST(CallNames, ALaunchInFlightOutlivesAnyNumberOnOtherCommunicators) {
  CallNames names;
  names.Next(7, 500, 1, 0, Nothing);
  for (int64_t run = 1000; run < 1000 + 3 * int64_t{CallNames::kLaunches}; ++run) names.Next(9, run, 0, 0, Nothing);
  EXPECT_TRUE((names.Next(7, 500, 2, 0, Nothing) == CallId{7, 0, 2, 0}));
  EXPECT_TRUE((names.Next(7, 600, 1, 0, Nothing) == CallId{7, 1, 1, 0}));
}

TEST(CallNames, AreFoundByTheirLaunch) {
  CallNames names;
  names.Next(7, 500, 1, 0, Nothing);
  names.Next(7, 501, 1, 0, Nothing);
  names.Next(8, 501, 4, 0, Nothing);
  const std::vector<CallId> found = names.Find(501);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE((found[0] == CallId{7, 1, 0, 0}));
  EXPECT_TRUE((found[1] == CallId{8, 0, 0, 0}));
  names.Forget(7);
  EXPECT_EQ(names.Find(501).size(), 1u);
}

TEST(CallNames, LaunchesThatTheOthersHaveGivenUpArePassedOver) {
  CallNames names;
  names.Next(7, 500, 1, 0, Nothing);
  const std::set<uint32_t> given_up = {0, 1, 2, 4};
  const auto is_given_up = [&](uint32_t launch) { return given_up.count(launch) > 0; };
  EXPECT_TRUE((names.Next(7, 500, 1, 1, is_given_up) == CallId{7, 0, 1, 0}));  // has begun here, so it is not skipped
  EXPECT_EQ(names.Next(7, 501, 1, 0, is_given_up).launch, 3u);
  EXPECT_EQ(names.Next(7, 502, 1, 0, is_given_up).launch, 5u);
}

}  // namespace
}  // namespace jaxcomm
