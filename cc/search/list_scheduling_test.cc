#include "cc/search/list_scheduling.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Numbers = std::vector<int64_t>;

constexpr double kForever = std::numeric_limits<double>::infinity();

// Moves whose ports are the source's sending port and the destination's receiving port.
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

// Two moves from rank 0 to the slow rank 1 take 2 seconds each. If rank 0's port is fast, each of these moves occupies
// the port for 1 second, so rank 0 starts the less urgent move to rank 2 in between. If rank 0's port is slow, the two
// moves keep the port busy.
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

// The move of the slow rank 0 takes 2 seconds and needs rank 2's port for 1 second. Both moves start at the same time:
// rank 2's port carries rank 1's move in the first second, and rank 0's move in the second one. In the other order,
// rank 1's move could start only after 1 second.
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
  moves.Add(1, 2, 0, MoveKind::kReduce);  // reads what the first move writes
  moves.Add(2, 0, 0, MoveKind::kCopy);    // overwrites what the first move reads
  ASSERT_TRUE(moves.Find({0, 0, 0}).ok());
  EXPECT_EQ(moves.round, (Numbers{0, 1, 2}));
  EXPECT_EQ(moves.phase, (Numbers{1, 1, 1}));
}

// An urgent move takes its port only when the moves that it waits for are done. Until then another move takes the port.
TEST(FindRounds, AMoveThatWaitsLeavesItsPortToOthers) {
  struct Case {
    const char* what;
    int64_t from, to;  // ranks of the preceding move
    MoveKind before, waits;
  };
  for (const Case& it : {Case{"reads what it writes", 2, 0, MoveKind::kCopy, MoveKind::kReduce},
                         Case{"copies over what it reads", 1, 2, MoveKind::kReduce, MoveKind::kCopy},
                         Case{"adds to what it reads", 1, 2, MoveKind::kReduce, MoveKind::kReduce},
                         Case{"exchanges what it writes", 2, 0, MoveKind::kCopy, MoveKind::kExchange}}) {
    Moves moves(4, 2);
    moves.Add(it.from, it.to, 0, it.before);
    moves.Add(0, 1, 0, it.waits);
    moves.Add(0, 3, 1, MoveKind::kReduce);  // uses the sending port of the waiting move
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
  EXPECT_EQ(stray.Find({0, 0}).message(), "move 0 has an unknown rank or chunk, or no port");
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
  // Rank 0 sends chunk 0 to rank 4, which does not pass it on. Rank 0 also sends chunk 1, which ranks 1 and 2 pass on.
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
  moves.Add(1, 2, 0, MoveKind::kReduce);  // waits for the late rank
  moves.Add(0, 2, 1, MoveKind::kReduce);
  for (const double delay : {100.0, kForever}) {
    ASSERT_TRUE(moves.Find({0, 0, 0, 1}, delay).ok());
    EXPECT_EQ(moves.phase, (Numbers{0, 1, 1, 0})) << delay;
    EXPECT_EQ(moves.round, (Numbers{0, 0, 1, 1})) << delay;
  }
  ASSERT_TRUE(moves.Find({0, 0, 0, 1}, 0.0).ok());  // rank 3 arrives at once, so its move may run before the last move
  EXPECT_EQ(moves.phase[1], 1);
  EXPECT_EQ(moves.phase[2], 1);
}

}  // namespace
}  // namespace jaxcomm
