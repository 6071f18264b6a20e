#include "cc/gpu/executor/failure_record.h"

#include <gtest/gtest.h>

#include <vector>

#include "cc/program/testing/by_hand.h"

namespace jaxcomm::fused {
namespace {

const CallName kName{"psum", "data", "3f9a01c2", 16 << 20};

TEST(FailureRecordTest, NamesTheOpThatARankThatCameHasNotDone) {
  std::vector<FailureRecord> records(4);
  records[0] = {7, {Reason::kNotArrived, 1, 0, 1}};  // the record of another call
  records[1] = {1, {Reason::kNotDone, 3, 12, 500'000'000}};
  EXPECT_EQ(
      FailureStatus(kName, 1, 4, 1, records.data()).message(),
      "DeadlineError: psum #1 over 'data' (16 MiB, plan 3f9a01c2): rank 3 of 4 has not done op 12 after 0.5 s; rank "
      "1 waits for it.");
  const std::string record = FailureStatus(kName, 1, 4, 1, records.data()).record();
  EXPECT_NE(record.find(R"("missing":[3],"waiting":[1],"seconds":0.5})"), std::string::npos) << record;
  records[0] = {2, {Reason::kStillThere, 1, 0, 1}};  // rank 1 may still access rank 0's memory
  EXPECT_EQ(FailureStatus(kName, 2, 4, 1, records.data()).code(), Code::kInternal);
}

TEST(FailureRecordTest, ReadsArrivalsAndTheShareOfEarlyWork) {
  // Op 0 of rank 0 reads chunk 0 on ranks 0 and 1, and stores their sum. Op 1 adds the chunk of rank 2 and stores the
  // sum on all ranks. 3 of the 8 reads and stores, those of op 0, end before the last rank arrives.
  const auto program = ByHand(3, 1, {{0, 0, {0, 1}, {0}, {}}, {0, 0, {0, 2}, {0, 1, 2}, {0}}});
  std::vector<uint64_t> clocks{5, 1000, 1500, 9000, 9700, 9800, 9900, 2000, 9600};
  const std::optional<CallRecord> record = RecordOf(clocks.data(), /*error=*/0, *program);
  ASSERT_TRUE(record);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_DOUBLE_EQ(record->arrivals.at(rank), std::vector<double>({0, 500e-9, 8000e-9})[rank]);
  }
  EXPECT_EQ(record->last, std::vector<uint32_t>{2});
  EXPECT_DOUBLE_EQ(record->after_arrival, 900e-9);
  EXPECT_DOUBLE_EQ(record->early_share, 3.0 / 8);
  for (const size_t end : {4, 5, 6}) clocks[end] = 8900;  // all ranks end before the last rank arrives
  EXPECT_FALSE(RecordOf(clocks.data(), /*error=*/99, *program));
  ASSERT_TRUE(RecordOf(clocks.data(), /*error=*/100, *program));
  EXPECT_EQ(RecordOf(clocks.data(), /*error=*/100, *program)->after_arrival, 0);
  clocks[4] = 100;  // rank 0's end is from an earlier call
  EXPECT_FALSE(RecordOf(clocks.data(), /*error=*/100, *program));
}

}  // namespace
}  // namespace jaxcomm::fused
