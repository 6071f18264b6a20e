#include "cc/executor/decide/decider.h"

#include <array>
#include <chrono>
#include <future>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/executor/testing/selecting_processes.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kProcesses = 4, kRails = 2, kRuns = 40;
constexpr std::chrono::seconds kSoon{20};  // much shorter than the deadline of a call

const ScheduleSelector::Rule kRules[] = {
    ScheduleSelector::kNoLateRank,
    ScheduleSelector::kTrial,
    {/*rank=*/0, /*seconds=*/0.0003},
    {ScheduleSelector::kAnyRank, /*seconds=*/0.0002},
    {ScheduleSelector::kAnyRank, /*seconds=*/0.0002, /*tries=*/true},
};

class DeciderTest : public SelectingProcesses<kProcesses> {
 protected:
  void Start(uint32_t seed) {
    hosts_ = {0, 1, 2, 3};
    const ScheduleSelector::Rule rule = kRules[seed % std::size(kRules)];
    std::vector<std::string> lists{"all_reduce/flat/4"};
    const auto add = [&] { lists.push_back(lists.size() % 2 == 0 ? "all_reduce/direct/4" : "all_reduce/ring/4"); };
    while (lists.size() < ScheduleSelector::Count(rule, kProcesses)) add();
    std::vector<ScheduleSelector::LostRail> lost_rails;
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      for (uint32_t rail = 0; rail < kRails; ++rail) {
        lost_rails.push_back({rank, rail, static_cast<uint32_t>(lists.size())});
        add();
      }
    }
    SelectingProcesses::Start(seed, lists, rule, lost_rails);
  }

  // Runs a rank's calls until a call fails. Returns the number of calls that succeeded.
  uint32_t Call(uint32_t rank, uint32_t seed) {
    std::mt19937 random(100 * seed + rank);
    for (uint32_t run = 0; run < kRuns; ++run) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 800));
      std::vector<float> values(kElements, static_cast<float>(rank));
      std::future<Status> end = Arrive(rank, values, run);
      if (end.wait_for(kSoon) != std::future_status::ready) {
        ADD_FAILURE() << "rank " << rank << " waits in call " << run << ", seed " << seed;
        return run;
      }
      if (!end.get().ok()) return run;
      EXPECT_EQ(values, std::vector<float>(kElements, 6.0f));
    }
    return kRuns;
  }

  void ChangeRail(std::mt19937& random) {
    const uint32_t process = random() % kProcesses, rail = random() % kRails;
    const bool is_open = random() % 2 == 0;
    for (uint32_t other = 0; other < kProcesses; ++other) {
      if (other == process) continue;
      executors_[process]->messages().OnRail(other, rail, is_open);
      executors_[other]->messages().OnRail(process, rail, is_open);
    }
  }

  void Stop() {
    network_->Stop();
    sites_.clear();
    others_.clear();
    executors_.clear();
    network_.reset();
  }
};

TEST_F(DeciderTest, AllProcessesDecideAlikeAndNoRankWaitsForADeadOne) {
  for (uint32_t seed = 0; seed < 4 * std::size(kRules); ++seed) {
    Start(seed);
    std::mt19937 random(seed);
    const std::optional<uint32_t> killed =
        seed / std::size(kRules) % 2 == 1 ? std::optional<uint32_t>(random() % kProcesses) : std::nullopt;
    std::array<uint32_t, kProcesses> succeeded;
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      ranks.emplace_back([&, rank] { succeeded[rank] = Call(rank, seed); });
    }
    for (int i = 0; i < 20; ++i) {
      ChangeRail(random);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 3));
      if (killed && i == 8) network_->Kill(*killed);
    }
    for (std::thread& rank : ranks) rank.join();
    for (uint32_t run = 0; run < kRuns; ++run) {
      std::set<uint32_t> schedules;
      for (const auto& site : sites_) {
        const std::optional<uint32_t> found = site->selector()->Find({77, run, 0, 0});
        if (found) schedules.insert(*found);
      }
      EXPECT_LE(schedules.size(), 1u) << "call " << run << ", seed " << seed;
    }
    for (const uint32_t calls : succeeded) EXPECT_TRUE(calls == kRuns || killed) << "seed " << seed;
    Stop();
  }
}

}  // namespace
}  // namespace jaxcomm
