// Exchanges with many outcomes, in which threads stand for processes: each maps the file for itself.
#include "cc/gpu/executor/bootstrap.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace jaxcomm::fused {
namespace {

using std::chrono::microseconds;

constexpr uint32_t kProcesses = 3;

std::string NewName() {
  static std::random_device random;
  return "bootstrap-test-" + std::to_string(random()) + "-" + std::to_string(random());
}

Slots SlotsOf(uint32_t process) { return Slots::Find({0, 1 << 16, 2 << 16}, process).value(); }

// The outcome for each process, of which process p publishes after delays[p], and confirms after as much again.
std::vector<Status> Outcomes(const std::vector<microseconds>& delays, microseconds timeout) {
  const std::string name = NewName();
  std::vector<Status> outcomes(kProcesses);
  std::vector<std::thread> processes;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    processes.emplace_back([&, process] {
      const auto here = std::move(Bootstrap::Open(name, SlotsOf(process)).value());
      std::this_thread::sleep_for(delays[process]);
      outcomes[process] = here->Publish(Status(), timeout);
      std::this_thread::sleep_for(delays[process]);
      if (outcomes[process].ok()) outcomes[process] = here->Confirm(Status(), timeout);
      here->Close();
      while (!here->AllClosed()) std::this_thread::sleep_for(microseconds(100));
    });
  }
  for (std::thread& process : processes) process.join();
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/jaxcomm-" + name));
  return outcomes;
}

TEST(BootstrapTest, AllAreToldTheSameHoweverCloseItWas) {
  std::mt19937 random(7);
  int succeeded = 0, failed = 0;
  for (int round = 0; round < 150; ++round) {
    std::vector<microseconds> delays;
    for (uint32_t process = 0; process < kProcesses; ++process) delays.push_back(microseconds(random() % 6000));
    const std::vector<Status> outcomes = Outcomes(delays, microseconds(3000));
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(outcome.code(), outcomes[0].code());
      EXPECT_EQ(outcome.message(), outcomes[0].message());
    }
    ++(outcomes[0].ok() ? succeeded : failed);
  }
  EXPECT_GT(succeeded, 0);
  EXPECT_GT(failed, 0);
}

TEST(BootstrapTest, NothingIsClosedThatOthersStillUse) {
  const std::string name = NewName();
  std::vector<std::unique_ptr<Bootstrap>> all;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    all.push_back(std::move(Bootstrap::Open(name, SlotsOf(process)).value()));
    all.back()->offer(process)[0] = std::byte(process + 1);
  }
  std::vector<std::thread> threads;
  for (auto& each : all) {
    threads.emplace_back([&each] {
      EXPECT_TRUE(each->Publish(Status(), std::chrono::seconds(20)).ok());
      for (uint32_t slot = 0; slot < kProcesses; ++slot) EXPECT_EQ(each->offer(slot)[0], std::byte(slot + 1));
      EXPECT_TRUE(each->Confirm(Status(), std::chrono::seconds(20)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  all[0]->Close();
  EXPECT_FALSE(all[0]->AllClosed());
  all[1]->Close();
  EXPECT_FALSE(all[0]->AllClosed());
  EXPECT_FALSE(all[1]->AllClosed());
  EXPECT_TRUE(all[2]->AllClosed());
  all[2]->Close();
  EXPECT_TRUE(all[0]->AllClosed());
}

TEST(BootstrapTest, WhoFailsGivesItsReasonToAllAndToThoseWhoComeLater) {
  const std::string name = NewName();
  const auto one = std::move(Bootstrap::Open(name, SlotsOf(1)).value());
  const std::string reason = "process 1: no memory";
  EXPECT_EQ(one->Publish(Status(Code::kInternal, "no memory"), std::chrono::seconds(20)).message(), reason);
  EXPECT_TRUE(one->AllClosed());  // who comes now finds that it has failed
  for (const uint32_t process : {0, 2}) {
    const auto other = std::move(Bootstrap::Open(name, SlotsOf(process)).value());
    EXPECT_EQ(other->Publish(Status(), std::chrono::seconds(20)).message(), reason);
    EXPECT_FALSE(one->AllClosed());
    other->Close();
    EXPECT_TRUE(one->AllClosed());
  }
}

TEST(BootstrapTest, AFileThatCannotBeMadeIsAnError) {
  const Status status = Bootstrap::Open("no/such/folder", SlotsOf(0)).status();
  EXPECT_EQ(status.message(),
            "/dev/shm/jaxcomm-no/such/folder cannot be shared: No such file or directory.\n  Cure: give all "
            "processes of this host one /dev/shm in which they may write.");
}

}  // namespace
}  // namespace jaxcomm::fused
