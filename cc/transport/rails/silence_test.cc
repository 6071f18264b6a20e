#include "cc/transport/rails/silence.h"

#include <chrono>
#include <optional>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Progress = std::optional<SendProgress>;

// Milliseconds until the second rail is silent, which carries on nothing while the first one does; 0: not in a second.
int UntilSilent(const SendProgress& second) {
  Silence silence(2);
  Silence::Clock::time_point now;
  for (int64_t looks = 0; looks * Silence::kLook <= std::chrono::seconds(1); ++looks) {
    const Silence::Found found = silence.Look({Progress({static_cast<uint64_t>(looks), 9, false}), second}, now);
    if (!found.silent.empty()) return static_cast<int>(looks * Silence::kLook.count());
    now += Silence::kLook;
  }
  return 0;
}

TEST(SilenceTest, SeveralPacketsAreToBeAnsweredSoon) { EXPECT_EQ(UntilSilent({5, 2, false}), 100); }

TEST(SilenceTest, OnePacketMayWaitForATimer) { EXPECT_EQ(UntilSilent({5, 1, false}), 300); }

TEST(SilenceTest, RepeatedPacketsMayWaitForATimer) { EXPECT_EQ(UntilSilent({5, 180, true}), 300); }

TEST(SilenceTest, NothingIsToBeAnswered) { EXPECT_EQ(UntilSilent({5, 0, false}), 0); }

}  // namespace
}  // namespace jaxcomm
