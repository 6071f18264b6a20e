#include "cc/schedules/list_scheduling.h"

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
  std::vector<double> seconds;
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
  }

  void Find(const Numbers& late, double delay = 0.0) {
    const auto count = static_cast<int64_t>(src.size());
    round.assign(src.size(), -1);
    phase.assign(src.size(), -1);
    FindRounds({count,
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
                {first.data(), members.data()}},
               late.data(), delay, {round.data(), phase.data()});
  }
};

TEST(FindRounds, NoMoves) {
  Moves moves(2, 1);
  moves.Find({0, 0});
  EXPECT_TRUE(moves.round.empty());
}

TEST(FindRounds, AMoveAwaitsWhatItReadsAndOverwrites) {
  Moves moves(3, 1);
  moves.Add(0, 1, 0, MoveKind::kReduce);
  moves.Add(1, 2, 0, MoveKind::kReduce);  // reads what the first writes
  moves.Add(2, 0, 0, MoveKind::kCopy);    // overwrites what the first reads
  moves.Find({0, 0, 0});
  EXPECT_EQ(moves.round, (Numbers{0, 1, 2}));
  EXPECT_EQ(moves.phase, (Numbers{1, 1, 1}));
}

TEST(FindRounds, APortCarriesOneAtATimeAndTheMoreUrgentFirst) {
  Moves moves(3, 2);
  moves.Add(0, 1, 0, MoveKind::kReduce);
  moves.Add(0, 2, 1, MoveKind::kReduce);
  moves.urgency = {1, 0};
  moves.Find({0, 0, 0});
  EXPECT_EQ(moves.round, (Numbers{1, 0}));
}

TEST(FindRounds, AnExchangeTakesBothRanksPortsAndGivesBothTheSum) {
  Moves moves(3, 1);
  moves.Add(0, 1, 0, MoveKind::kExchange);
  moves.Add(1, 2, 0, MoveKind::kCopy);
  moves.Add(0, 2, 0, MoveKind::kReduce);
  moves.Find({0, 0, 0});
  EXPECT_EQ(moves.round, (Numbers{0, 1, 2}));
}

TEST(FindRounds, TheSecondPassStartsFirstWhatHasMostBehindIt) {
  // Rank 0 sends chunk 0, which nobody needs, and chunk 1, which three more ranks pass on.
  Moves moves(5, 2);
  moves.Add(0, 4, 0, MoveKind::kCopy);
  for (int64_t rank = 0; rank < 3; ++rank) moves.Add(rank, rank + 1, 1, MoveKind::kCopy);
  moves.Find({0, 0, 0, 0, 0});
  EXPECT_EQ(moves.round, (Numbers{1, 0, 1, 2}));
}

TEST(FindRounds, WhatWaitsForALateRankIsInTheSecondPhase) {
  Moves moves(4, 2);
  moves.Add(0, 1, 0, MoveKind::kReduce);
  moves.Add(3, 1, 0, MoveKind::kReduce);  // rank 3 is late
  moves.Add(1, 2, 0, MoveKind::kReduce);  // waits for it
  moves.Add(0, 2, 1, MoveKind::kReduce);
  for (const double delay : {100.0, kForever}) {
    moves.Find({0, 0, 0, 1}, delay);
    EXPECT_EQ(moves.phase, (Numbers{0, 1, 1, 0})) << delay;
    EXPECT_EQ(moves.round, (Numbers{0, 0, 1, 1})) << delay;
  }
  moves.Find({0, 0, 0, 1}, 0.0);  // the late rank is there at once: the last move may come behind it
  EXPECT_EQ(moves.phase[1], 1);
  EXPECT_EQ(moves.phase[2], 1);
}

}  // namespace
}  // namespace jaxcomm
