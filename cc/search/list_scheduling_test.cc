#include "cc/search/list_scheduling.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Numbers = std::vector<int64_t>;

constexpr double kForever = std::numeric_limits<double>::infinity();

// Moves whose ports are what their source sends with and what their destination receives with.
struct Moves {
  int64_t ranks, chunks;
  Numbers src, dst, chunk, urgency;
  std::vector<MoveKind> kind;
  std::vector<double> seconds, port_seconds;
  Numbers route, first{0}, members, round, phase;

  Moves(int64_t num_ranks, int64_t num_chunks) : ranks(num_ranks), chunks(num_chunks) {}

  void Add(int64_t from, int64_t to, int64_t what, MoveKind how, double takes = 1.0) {
    urgency.push_back(static_cast<int64_t>(src.size()));
    route.push_back(urgency.back());
    src.push_back(from);
    dst.push_back(to);
    chunk.push_back(what);
    kind.push_back(how);
    seconds.push_back(takes);
    members.insert(members.end(), {from, ranks + to});
    if (how == MoveKind::kExchange) members.insert(members.end(), {to, ranks + from});
    first.push_back(static_cast<int64_t>(members.size()));
    port_seconds.resize(members.size(), takes);
  }

  Status Find(const Numbers& late, double delay = 0.0) {
    const auto count = static_cast<int64_t>(src.size());
    round.assign(src.size(), -1);
    phase.assign(src.size(), -1);
    return FindRounds({count,
                       ranks,
                       chunks,
                       2 * ranks,
                       count,
                       src.data(),
                       dst.data(),
                       chunk.data(),
                       kind.data(),
                       seconds.data(),
                       route.data(),
                       urgency.data(),
                       {first.data(), members.data()},
                       port_seconds.data()},
                      late.data(), delay, {round.data(), phase.data()});
  }
};

// Rank 1 is slow: two moves to it take 2 seconds each, and rank 0's port one of them. So rank 0 sends to rank 2 between
// them, though that is less urgent; a port that was taken throughout would have no time for it.
TEST(FindRounds, AFastPortCarriesOthersBesideASlowOnes) {
  for (const bool is_fast : {true, false}) {
    Moves moves(3, 3);
    moves.Add(0, 1, 0, MoveKind::kReduce, 2.0);
    moves.Add(0, 1, 1, MoveKind::kReduce, 2.0);
    moves.Add(0, 2, 2, MoveKind::kReduce, 1.0);
    if (is_fast) moves.port_seconds[0] = moves.port_seconds[2] = 1.0;
    ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
    EXPECT_EQ(moves.round, is_fast ? (Numbers{0, 2, 1}) : (Numbers{0, 1, 2}));
  }
}

// Both start at once: rank 2's port carries the move of rank 1 first, and in the second half that of the slow rank 0.
// In the other order the move of rank 1 could only start in the second half.
TEST(FindRounds, MovesThatStartAtOnceStayInTheOrderInWhichTheirPortCarriesThem) {
  Moves moves(3, 2);
  moves.Add(0, 2, 0, MoveKind::kReduce, 2.0);
  moves.Add(1, 2, 1, MoveKind::kReduce, 1.0);
  moves.port_seconds[1] = 1.0;
  moves.urgency = {1, 0};
  ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{1, 0}));
}

TEST(FindRounds, NoMoves) {
  Moves moves(2, 1);
  ASSERT_TRUE(moves.Find({0, 0}).ok());
  EXPECT_TRUE(moves.round.empty());
}

TEST(FindRounds, AMoveAwaitsWhatItReadsAndOverwrites) {
  Moves moves(3, 1);
  moves.Add(0, 1, 0, MoveKind::kReduce);
  moves.Add(1, 2, 0, MoveKind::kReduce);  // reads what the first writes
  moves.Add(2, 0, 0, MoveKind::kCopy);    // overwrites what the first reads
  ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{0, 1, 2}));
  EXPECT_EQ(moves.phase, (Numbers{1, 1, 1}));
}

// An urgent move gets its port only once the moves that it awaits are done: another one takes the port first.
TEST(FindRounds, AMoveThatWaitsLeavesItsPortToOthers) {
  struct Case {
    const char* what;
    int64_t from, to;  // of the move before
    MoveKind before, waits;
  };
  for (const Case& it : {Case{"reads what it writes", 2, 0, MoveKind::kCopy, MoveKind::kReduce},
                         Case{"copies over what it reads", 1, 2, MoveKind::kReduce, MoveKind::kCopy},
                         Case{"adds to what it reads", 1, 2, MoveKind::kReduce, MoveKind::kReduce},
                         Case{"exchanges what it writes", 2, 0, MoveKind::kCopy, MoveKind::kExchange}}) {
    Moves moves(4, 2);
    moves.Add(it.from, it.to, 0, it.before);
    moves.Add(0, 1, 0, it.waits);
    moves.Add(0, 3, 1, MoveKind::kReduce);  // through the port with which that is sent
    moves.urgency = {2, 0, 1};
    ASSERT_TRUE(moves.Find({0, 0, 0, 0}).ok());
    EXPECT_EQ(moves.round, (Numbers{0, 1, 0})) << it.what;
  }
}

TEST(FindRounds, WhatIsReadIsOverwrittenInALaterRound) {
  Moves moves(3, 1);
  moves.Add(1, 2, 0, MoveKind::kReduce);
  moves.Add(0, 1, 0, MoveKind::kCopy);
  ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{0, 1}));
}

TEST(FindRounds, OthersDoNotWaitForTheMostUrgentMoveOfALateRank) {
  Moves moves(4, 2);
  moves.Add(3, 1, 0, MoveKind::kReduce);  // rank 3 is late
  moves.Add(0, 1, 1, MoveKind::kReduce);
  ASSERT_TRUE(moves.Find({0, 0, 0, 1}, 100.0).ok());
  EXPECT_EQ(moves.phase, (Numbers{1, 0}));
}

TEST(FindRounds, AMoveNeedsAPortAndRanksThatThereAre) {
  Moves stray(2, 1), without(2, 1);
  stray.Add(0, 2, 0, MoveKind::kCopy);
  EXPECT_EQ(stray.Find({0, 0}).message(), "move 0 needs ranks, a chunk and a port that there are");
  without.Add(0, 1, 0, MoveKind::kCopy);
  without.first = {0, 0};
  EXPECT_FALSE(without.Find({0, 0}).ok());
}

TEST(FindRounds, APortCarriesOneAtATimeAndTheMoreUrgentFirst) {
  Moves moves(3, 2);
  moves.Add(0, 1, 0, MoveKind::kReduce);
  moves.Add(0, 2, 1, MoveKind::kReduce);
  moves.urgency = {1, 0};
  ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{1, 0}));
}

TEST(FindRounds, AnExchangeTakesBothRanksPortsAndGivesBothTheSum) {
  Moves moves(3, 1);
  moves.Add(0, 1, 0, MoveKind::kExchange);
  moves.Add(1, 2, 0, MoveKind::kCopy);
  moves.Add(0, 2, 0, MoveKind::kReduce);
  ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{0, 1, 2}));
}

TEST(FindRounds, TheSecondPassStartsFirstWhatHasMostBehindIt) {
  // Rank 0 sends chunk 0, which nobody needs, and chunk 1, which three more ranks pass on.
  Moves moves(5, 2);
  moves.Add(0, 4, 0, MoveKind::kCopy);
  for (int64_t rank = 0; rank < 3; ++rank) moves.Add(rank, rank + 1, 1, MoveKind::kCopy);
  ASSERT_TRUE(moves.Find({0, 0, 0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{1, 0, 1, 2}));
}

TEST(FindRounds, WhatWaitsForALateRankIsInTheSecondPhase) {
  Moves moves(4, 2);
  moves.Add(0, 1, 0, MoveKind::kReduce);
  moves.Add(3, 1, 0, MoveKind::kReduce);  // rank 3 is late
  moves.Add(1, 2, 0, MoveKind::kReduce);  // waits for it
  moves.Add(0, 2, 1, MoveKind::kReduce);
  for (const double delay : {100.0, kForever}) {
    ASSERT_TRUE(moves.Find({0, 0, 0, 1}, delay).ok());
    EXPECT_EQ(moves.phase, (Numbers{0, 1, 1, 0})) << delay;
    EXPECT_EQ(moves.round, (Numbers{0, 0, 1, 1})) << delay;
  }
  ASSERT_TRUE(moves.Find({0, 0, 0, 1}, 0.0).ok());  // the late rank is there at once: the last move may come behind it
  EXPECT_EQ(moves.phase[1], 1);
  EXPECT_EQ(moves.phase[2], 1);
}

}  // namespace
}  // namespace jaxcomm
