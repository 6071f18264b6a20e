#include "cc/search/tree_search.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Numbers = std::vector<int64_t>;

// Ranks of one host. A message takes `alpha` plus one second. All ranks send their sums to rank 0, which sends the
// total to all other ranks.
struct Star {
  int64_t ranks, chunks;
  double alpha = 0.0;
  std::vector<double> ready, port_s, link_s, start, end;
  Numbers remote, link, up, down, partner, order;

  Star(int64_t num_ranks, int64_t num_chunks) : ranks(num_ranks), chunks(num_chunks) {
    const auto cells = static_cast<size_t>(ranks * chunks), pairs = static_cast<size_t>(ranks * ranks);
    ready.assign(static_cast<size_t>(ranks), 0.0);
    port_s.assign(pairs, 1.0);
    remote.assign(pairs, 0);
    link.assign(kStages * pairs, -1);
    link_s.assign(kStages * pairs, 0.0);
    for (size_t cell = 0; cell < cells; ++cell) up.push_back(cell % static_cast<size_t>(ranks) == 0 ? -1 : 0);
    down = up;
    partner.assign(static_cast<size_t>(chunks), -1);
    for (int64_t message = 0; message < 2 * ranks * chunks; ++message) order.push_back(message);
    start.resize(order.size());
    end.resize(order.size());
  }

  Status Improve(int64_t tries = 0) {
    return ImproveTrees(
        {ranks, chunks, 1, alpha, ready.data(), remote.data(), port_s.data(), link.data(), link_s.data()}, tries, 7,
        {up.data(), down.data(), partner.data(), order.data()}, {start.data(), end.data()});
  }

  double Latest() const { return *std::max_element(end.begin(), end.end()); }
};

TEST(ImproveTrees, MessagesWaitForPortsAndForWhatTheySend) {
  Star star(3, 1);
  star.alpha = 0.5;
  ASSERT_TRUE(star.Improve().ok());
  EXPECT_EQ(star.start, (std::vector<double>{-1, -1, 0, 3, 1.5, 4.5}));
  EXPECT_EQ(star.end, (std::vector<double>{-1, -1, 1.5, 4.5, 3, 6}));
}

TEST(ImproveTrees, NothingReachesARankBeforeItComes) {
  Star star(3, 1);
  star.ready = {5, 0, 0};
  ASSERT_TRUE(star.Improve().ok());
  EXPECT_EQ(star.Latest(), 9.0);
}

TEST(ImproveTrees, AnExchangeTakesThePortsInBothDirections) {
  Star star(2, 1);
  star.partner = {1};
  ASSERT_TRUE(star.Improve().ok());
  EXPECT_EQ(star.Latest(), 1.0);
}

TEST(ImproveTrees, ASharedLinkServesOneAfterTheOther) {
  Star star(3, 1);
  for (const size_t pair : {3, 6}) star.link[pair] = 0, star.link_s[pair] = 2.0;
  star.remote[6] = 1;  // another port, so that both messages can start
  ASSERT_TRUE(star.Improve().ok());
  EXPECT_EQ(star.end[2], 2.0);
  EXPECT_EQ(star.end[4], 4.0);
}

TEST(ImproveTrees, FindsTheBestOfFourRanks) {
  Star star(4, 3);
  ASSERT_TRUE(star.Improve().ok());
  EXPECT_EQ(star.Latest(), 12.0);
  ASSERT_TRUE(star.Improve(20000).ok());
  EXPECT_LE(star.Latest(), 6.0);  // 18 messages of 1 s through 4 ports take at least 4.5 s
  const Star found = star;
  ASSERT_TRUE(star.Improve().ok());
  EXPECT_EQ(star.end, found.end) << "the times are those of the returned trees";
}

TEST(ImproveTrees, WhatIsNoTreeIsAnError) {
  Star two_roots(3, 1), ring(3, 1), lost(3, 1), partner(3, 1), twice(3, 1);
  two_roots.up[1] = -1;
  ring.down[1] = 2;
  ring.down[2] = 1;
  lost.up[2] = 3;
  partner.up[2] = 1;
  partner.partner[0] = 2;
  twice.order[0] = 1;
  for (Star* star : {&two_roots, &ring, &lost, &partner, &twice}) EXPECT_FALSE(star->Improve().ok());
}

TEST(ImproveTrees, WhatIsNoNetworkIsAnError) {
  Star alone(1, 1), nothing(2, 0), never(3, 1), backwards(3, 1), elsewhere(3, 1);
  never.ready[1] = std::numeric_limits<double>::quiet_NaN();
  backwards.port_s[1] = -1.0;
  elsewhere.link[1] = 1;
  for (Star* star : {&alone, &nothing, &never, &backwards, &elsewhere}) EXPECT_FALSE(star->Improve().ok());
}

}  // namespace
}  // namespace jaxcomm
