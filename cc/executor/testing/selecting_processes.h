// Simulated processes. Each has one or more ranks, and sites that select from several schedules.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {

template <uint32_t kProcesses, uint32_t kRanksOfEach = 1>
class SelectingProcesses : public testing::Test {
 protected:
  static constexpr size_t kElements = 3000;

  ~SelectingProcesses() override {
    if (network_) network_->Stop();
  }

  // Makes the processes. The calls of `sites_` select from these lists; the first list is schedule 0.
  void Start(uint32_t seed, const std::vector<std::string>& lists, ScheduleSelector::Rule rule,
             const std::vector<ScheduleSelector::LostRail>& lost_rails = {}) {
    network_ = std::make_unique<SimulatedNetwork>(kProcesses, seed);
    for (uint32_t process = 0; process < kProcesses; ++process) {
      executors_.push_back(std::make_unique<Executor>(1));
      Executor& executor = *executors_.back();
      network_->Connect(process, &executor.messages());
      executor.messages().Connect(&network_->transport(process));
      sites_.push_back(MakeSite(lists[0], process));
      others_.emplace_back();
      for (size_t i = 1; i < lists.size(); ++i) others_.back().push_back(MakeSite(lists[i], process));
      MessageSite& site = *sites_.back();
      site.SelectFrom(others_.back(),
                      executor.messages().SelectorOf(site, others_.back(), rule, /*step=*/0, lost_rails));
      EXPECT_TRUE(site.SetLeaves({{DType::kF32, 4 * kElements}}, executor.stats()).ok());
    }
  }

  std::shared_ptr<MessageSite> MakeSite(const std::string& list, uint32_t process, uint32_t site = 0) {
    MessageGroup group{{}, list, {}};
    for (uint32_t rank = 0; rank < kProcesses * kRanksOfEach; ++rank) {
      group.ranks.push_back({rank / kRanksOfEach, 10 * rank, hosts_.empty() ? 0 : hosts_[rank]});
      group.lists.push_back(registry_.Find(list, rank));
    }
    auto made = MessageSite::Make({"psum", "data", "plan", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 77,
                                  site, {group}, process);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.value();
  }

  std::future<Status> Arrive(uint32_t rank, std::vector<float>& values, int64_t run) {
    const auto end = std::make_shared<std::promise<Status>>();
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    const uint32_t process = rank / kRanksOfEach;
    executors_[process]->messages().Arrive(sites_[process], run, rank, {{bytes}, {bytes}},
                                           [end](const Status& status) { end->set_value(status); });
    return end->get_future();
  }

  // Runs a rank's launches, four in flight at once, with a pause before each call.
  template <typename Pause>
  void SumInLoop(uint32_t rank, int64_t runs, Pause pause) {
    const float sum = static_cast<float>(kProcesses * (kProcesses - 1) / 2);
    for (int64_t run = 0; run < runs; run += 4) {
      std::vector<std::vector<float>> values(4, std::vector<float>(kElements, static_cast<float>(rank)));
      std::vector<std::future<Status>> ends;
      for (int64_t i = 0; i < 4; ++i) {
        pause(run);
        ends.push_back(Arrive(rank, values[static_cast<size_t>(i)], run + i));
      }
      for (auto& end : ends) {
        const Status status = end.get();
        EXPECT_TRUE(status.ok()) << status.message();
      }
      for (const auto& each : values) EXPECT_EQ(each, std::vector<float>(kElements, sum));
    }
  }

  // The number of calls that ran the schedule for calls without a late rank.
  int DefaultCallsAt(uint32_t process) { return CountAt(process, "\"early_calls\":"); }
  // The number of calls that ran a schedule for a host that lacks a rail.
  int LostRailCallsAt(uint32_t process) { return CountAt(process, "\"lost_rail_calls\":"); }
  int CountAt(uint32_t process, const std::string& name) {
    const std::string json = executors_[process]->stats().Json();
    return std::stoi(json.substr(json.find(name) + name.size()));
  }

  static bool IsWaiting(std::future<Status>& end) {
    return end.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout;
  }

  std::vector<uint32_t> hosts_;  // by rank; empty: one host
  MessageRegistry registry_;
  std::unique_ptr<SimulatedNetwork> network_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::shared_ptr<MessageSite>> sites_;
  std::vector<std::vector<std::shared_ptr<MessageSite>>> others_;  // by process: the sites of schedules 1, 2, …
};

}  // namespace jaxcomm
