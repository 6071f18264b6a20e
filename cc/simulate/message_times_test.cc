#include "cc/simulate/message_times.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Lists {
  std::vector<int64_t> first{0}, members;

  explicit Lists(const std::vector<std::vector<int64_t>>& lists) {
    for (const auto& list : lists) {
      members.insert(members.end(), list.begin(), list.end());
      first.push_back(static_cast<int64_t>(members.size()));
    }
  }
  operator IndexLists() const { return {first.data(), members.data()}; }
};

TEST(FindTimes, AMessageWaitsForArrivalsAndForPorts) {
  // Message 1 waits for the arrival of message 0. Message 2 waits only for the ports of message 0. Node 3 is a point
  // that waits for messages 1 and 2.
  const Lists after_end({{1}, {3}, {3}, {}}), after_free({{2}, {}, {}, {}}), stages({{}, {}, {}, {}});
  const std::vector<int64_t> waits = {0, 1, 1, 2};
  std::vector<double> start = {5, 0, 0, kNever}, free = {2, 2, 2, 0}, end = {10, 10, 10, 0};
  FindTimes({3, 4, 0, after_end, after_free, waits.data(), stages, nullptr, nullptr, nullptr},
            {start.data(), free.data(), end.data()});
  EXPECT_EQ(start, (std::vector<double>{5, 17, 7, 29}));
  EXPECT_EQ(free, (std::vector<double>{7, 19, 9, 29}));
  EXPECT_EQ(end, (std::vector<double>{17, 29, 19, 29}));
}

TEST(FindTimes, ASharedLinkServesOneMessageAfterTheOther) {
  // Messages 0 and 1 pass link 0 and then the slower link 1. Message 1 starts first. Message 2 passes only link 1.
  const Lists none({{}, {}, {}}), stages({{0, 1}, {0, 1}, {1}});
  const std::vector<int64_t> waits = {0, 0, 0}, link = {0, 0, -1, 1, 1, 1};
  const std::vector<double> taken = {3, 3, 0, 4, 4, 4}, slowest = {3, 3, 1, 4, 4, 4};
  std::vector<double> start = {1, 0, 20}, free = {1, 1, 1}, end = {0.5, 0.5, 0.5};
  FindTimes({3, 3, 2, none, none, waits.data(), stages, link.data(), taken.data(), slowest.data()},
            {start.data(), free.data(), end.data()});
  EXPECT_EQ(free, (std::vector<double>{8, 4, 24}));  // message 0 waits at link 0 until 3, and at link 1 until 4
  EXPECT_EQ(end, (std::vector<double>{8.5, 4.5, 24.5}));
}

TEST(FindTimes, OfThoseThatWaitTheFirstInOrderPasses) {
  // Message 2 arrives first. While the link serves message 2, message 1 arrives before message 0.
  const Lists none({{}, {}, {}}), stages({{0}, {0}, {0}});
  const std::vector<int64_t> waits = {0, 0, 0}, link = {0, 0, 0};
  const std::vector<double> taken = {4, 4, 4};
  std::vector<double> start = {2, 1, 0}, free = {1, 1, 1}, end = {0, 0, 0};
  FindTimes({3, 3, 1, none, none, waits.data(), stages, link.data(), taken.data(), taken.data()},
            {start.data(), free.data(), end.data()});
  EXPECT_EQ(end, (std::vector<double>{8, 12, 4}));
}

TEST(FindTimes, AFastLinkServesOthersBesideASlowMessage) {
  // Message 0 occupies its ports from 0 to 6. The link needs only 2 of these 6 seconds, so message 1 passes at time 2.
  // Message 2 also passes at time 2. The link is busy with message 1 until time 4, but message 2 needs the link for
  // only 2 of its 6 seconds, and uses the link from 4 to 6.
  const Lists none({{}, {}, {}}), stages({{0}, {0}, {0}});
  const std::vector<int64_t> waits = {0, 0, 0}, link = {0, 0, 0};
  const std::vector<double> taken = {2, 2, 2}, slowest = {6, 2, 6};
  std::vector<double> start = {0, 1, 1}, free = {6, 2, 6}, end = {0, 0, 0};
  FindTimes({3, 3, 1, none, none, waits.data(), stages, link.data(), taken.data(), slowest.data()},
            {start.data(), free.data(), end.data()});
  EXPECT_EQ(end, (std::vector<double>{6, 4, 8}));
}

}  // namespace
}  // namespace jaxcomm
