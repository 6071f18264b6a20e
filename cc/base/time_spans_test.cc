#include "cc/base/time_spans.h"

#include <chrono>
#include <cstdint>
#include <numeric>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

struct Count {
  void Add(const Count& later) { count += later.count; }

  int64_t count = 0;
};
using Spans = TimeSpans<Count>;
using std::chrono::microseconds;

constexpr Spans::Clock::time_point kBegin{std::chrono::hours(3)};

int64_t Total(const Spans& spans) {
  return std::accumulate(spans.spans().begin(), spans.spans().end(), int64_t{0},
                         [](int64_t sum, const auto& span) { return sum + span.value.count; });
}

TEST(TimeSpans, WhatIsNearIsOneSpan) {
  Spans spans;
  ++spans.At(kBegin).count;
  ++spans.At(kBegin + Spans::kShortest - microseconds(1)).count;
  ++spans.At(kBegin + 10 * Spans::kShortest).count;
  ++spans.At(kBegin + 2 * Spans::kShortest).count;  // as if another thread had read the clock before the last call
  ASSERT_EQ(spans.spans().size(), 2u);
  EXPECT_EQ(spans.spans()[0].value.count, 2);
  EXPECT_EQ(spans.spans()[1].value.count, 2);
  EXPECT_EQ(spans.BeginOf(spans.spans()[1]) - spans.BeginOf(spans.spans()[0]), 10 * Spans::kShortest);
}

TEST(TimeSpans, ALongRunKeepsAllOfItsTimeInAsMuchMemory) {
  Spans spans;
  const int64_t calls = 1'000'000;
  for (int64_t call = 0; call < calls; ++call) ++spans.At(kBegin + call * microseconds(100'000)).count;
  EXPECT_LE(spans.spans().size(), Spans::kMost);
  EXPECT_GE(spans.spans().size(), Spans::kMost / 2);
  EXPECT_EQ(Total(spans), calls);
  EXPECT_EQ(spans.BeginOf(spans.spans()[0]), std::chrono::hours(3));
  EXPECT_GE(spans.BeginOf(spans.spans().back()) + spans.width(),
            std::chrono::hours(3) + (calls - 1) * microseconds(100'000));
}

TEST(TimeSpans, RareRecordsStayApartUntilThereAreTooMany) {
  Spans spans;
  const auto at = [](int64_t record) { return kBegin + record * std::chrono::hours(1); };
  for (int64_t record = 0; record < int64_t{Spans::kMost}; ++record) ++spans.At(at(record)).count;
  EXPECT_EQ(spans.spans().size(), Spans::kMost);
  EXPECT_EQ(spans.width(), Spans::kShortest);
  ++spans.At(at(Spans::kMost)).count;
  EXPECT_LE(spans.spans().size(), Spans::kMost);
  EXPECT_EQ(Total(spans), int64_t{Spans::kMost} + 1);
}

}  // namespace
}  // namespace jaxcomm
