#include "cc/base/thread.h"

#include <cfenv>
#include <optional>
#include <thread>

#include "cc/base/testing/no_threads.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// Whether this thread turns denormal results and denormal operands into zero, and whether it rounds up.
struct Mode {
  bool flushes_results, flushes_operands, rounds_up;

  static Mode OfThisThread() {
    volatile float smallest = 0x1p-126f, denormal = 0x1p-127f, half = 0.5f, two = 2, one = 1, bit = 0x1p-30f;
    return {smallest * half == 0, denormal * two == 0, one + bit > 1};
  }
};

void ExpectXlas(Mode mode) {
  EXPECT_TRUE(mode.flushes_results);
  EXPECT_TRUE(mode.flushes_operands);
  EXPECT_FALSE(mode.rounds_up);
}

void ExpectRoundsUpAndKeepsDenormals(Mode mode) {
  EXPECT_FALSE(mode.flushes_results);
  EXPECT_FALSE(mode.flushes_operands);
  EXPECT_TRUE(mode.rounds_up);
}

class ThreadTest : public testing::Test {
 protected:
  ThreadTest() { std::fesetround(FE_UPWARD); }
  ~ThreadTest() override { std::fesetround(FE_TONEAREST); }
};

TEST_F(ThreadTest, ComputesLikeXlasWhateverItsMakerDoes) {
  ExpectRoundsUpAndKeepsDenormals(Mode::OfThisThread());
  Mode found{};
  std::optional<std::thread> thread = StartThread([&] { found = Mode::OfThisThread(); });
  ASSERT_TRUE(thread);
  thread->join();
  ExpectXlas(found);
}

TEST_F(ThreadTest, AModeEndsWithItsScope) {
  {
    const XlaFloatMode mode;
    ExpectXlas(Mode::OfThisThread());
  }
  ExpectRoundsUpAndKeepsDenormals(Mode::OfThisThread());
}

TEST_F(ThreadTest, OneThatCannotBeMadeIsNone) {
  const NoThreads none;
  EXPECT_FALSE(StartThread([] {}));
}

}  // namespace
}  // namespace jaxcomm
