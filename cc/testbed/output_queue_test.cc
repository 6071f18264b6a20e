#include "cc/testbed/output_queue.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/testbed/testing/frames.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr double kRate = 1e9;  // bytes per second: one byte per nanosecond
constexpr int64_t kSize = 1000;

// Returns the priorities of the frames in the order in which they leave. Sets `*end` to the time when the last frame
// leaves.
std::vector<size_t> Drain(OutputQueue* queue, int64_t* end) {
  std::vector<size_t> order;
  while (queue->departure() != kNever) {
    *end = queue->departure();
    order.push_back(queue->Depart(kRate).priority());
  }
  return order;
}

TEST(OutputQueueTest, TheHighestPriorityGoesFirstButInterruptsNoFrame) {
  OutputQueue queue(Limits(1 << 20, 1 << 20));
  for (const size_t priority : {0, 0, 3, 7, 3}) queue.Add(FrameOf(kSize, priority), kRate, 100);
  int64_t end = 0;
  EXPECT_EQ(Drain(&queue, &end), (std::vector<size_t>{0, 7, 3, 3, 0}));
  EXPECT_EQ(end, 100 + 5 * kSize);
  EXPECT_EQ(queue.counts(0).packets, 2);
  EXPECT_EQ(queue.counts(0).bytes, 2 * kSize);
  EXPECT_EQ(queue.counts(0).delays.Longest(), 4 * kSize);
  EXPECT_EQ(queue.counts(7).delays.Longest(), kSize);
  EXPECT_EQ(queue.counts(3).delays.Mean(), 2.5 * kSize);
}

TEST(OutputQueueTest, TheLinkHasItsRateAndIsIdleInBetween) {
  OutputQueue queue(Limits(1 << 20, 1 << 20));
  queue.Add(FrameOf(kSize), 0.5 * kRate, 10);
  EXPECT_EQ(queue.departure(), 10 + 2 * kSize);
  queue.Depart(kRate);
  EXPECT_EQ(queue.departure(), kNever);
  queue.Add(FrameOf(kSize), kRate, 9999);
  EXPECT_EQ(queue.departure(), 9999 + kSize);
  EXPECT_EQ(TimeOnLink(1, 1e12), 1);
}

TEST(OutputQueueTest, OrdinaryFramesGoFirstWhereItGrowsFull) {
  OutputQueue queue(Limits(10 * kSize, 4 * kSize));
  for (int i = 0; i < 9; ++i) {
    queue.Add(FrameOf(kSize, 0, kOrdinary), kRate, 0);
    queue.Add(FrameOf(kSize, 0, kImportant), kRate, 0);
  }
  EXPECT_EQ(queue.counts(0).ordinary_drops, 7);   // 2 of 9 ordinary frames arrive before the queue holds 4 frames
  EXPECT_EQ(queue.counts(0).important_drops, 1);  // 8 of 9 important frames fill the rest of the buffer
  int64_t end = 0;
  EXPECT_EQ(Drain(&queue, &end).size(), 10u);
  queue.Add(FrameOf(kSize), kRate, end);
  EXPECT_EQ(queue.counts(0).ordinary_drops, 7);  // there is room again
}

TEST(OutputQueueTest, ThresholdsAreOfAQueueAndTheBufferIsOfAll) {
  QueueLimits limits = Limits(12 * kSize, 0);
  limits.ordinary[1] = 6 * kSize;
  limits.ordinary[2] = 3 * kSize;
  limits.important[2] = 5 * kSize;
  OutputQueue queue(limits);
  for (int i = 0; i < 7; ++i) queue.Add(FrameOf(kSize, 1), kRate, 0);
  for (int i = 0; i < 4; ++i) queue.Add(FrameOf(kSize, 2), kRate, 0);
  for (int i = 0; i < 3; ++i) queue.Add(FrameOf(kSize, 2, kImportant), kRate, 0);
  for (int i = 0; i < 2; ++i) queue.Add(FrameOf(kSize, 7, kImportant), kRate, 0);
  EXPECT_EQ(queue.counts(1).ordinary_drops, 1);
  EXPECT_EQ(queue.counts(2).ordinary_drops, 1);
  EXPECT_EQ(queue.counts(2).important_drops, 1);  // one frame exceeds the queue's limit
  EXPECT_EQ(queue.counts(7).important_drops, 1);  // the buffer is full: the queues hold 6, 5 and 1 frames
}

TEST(OutputQueueTest, AFrameHoldsItsRoomUntilItHasLeft) {
  OutputQueue queue(Limits(kSize, kSize));
  queue.Add(FrameOf(kSize), kRate, 0);
  queue.Add(FrameOf(kSize), kRate, kSize - 1);
  EXPECT_EQ(queue.counts(0).ordinary_drops, 1);
  queue.Depart(kRate);
  queue.Add(FrameOf(kSize), kRate, kSize);
  EXPECT_EQ(queue.counts(0).ordinary_drops, 1);
}

}  // namespace
}  // namespace jaxcomm
