#include "cc/transport/rails/silent_rails.h"

#include <chrono>
#include <optional>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Progress = std::optional<SendProgress>;

// Returns the time in milliseconds until the second rail, which makes no progress, counts as silent. Returns 0 if it
// does not count as silent within a second.
int UntilSilent(const SendProgress& second) {
  SilentRails silence(2);
  SilentRails::Clock::time_point now;
  for (int64_t looks = 0; looks * SilentRails::kLook <= std::chrono::seconds(1); ++looks) {
    const SilentRails::Found found = silence.Look({Progress({static_cast<uint64_t>(looks), 9, false}), second}, now);
    if (!found.silent.empty()) return static_cast<int>(looks * SilentRails::kLook.count());
    now += SilentRails::kLook;
  }
  return 0;
}

TEST(SilentRailsTest, SeveralPacketsAreToBeAnsweredSoon) { EXPECT_EQ(UntilSilent({5, 2, false}), 100); }

TEST(SilentRailsTest, OnePacketMayWaitForATimer) { EXPECT_EQ(UntilSilent({5, 1, false}), 300); }

TEST(SilentRailsTest, RepeatedPacketsMayWaitForATimer) { EXPECT_EQ(UntilSilent({5, 180, true}), 300); }

TEST(SilentRailsTest, NothingIsToBeAnswered) { EXPECT_EQ(UntilSilent({5, 0, false}), 0); }

}  // namespace
}  // namespace jaxcomm
