// Processes that end as soon as their last call has ended, over the transports of real jobs.
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/thread.h"
#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "cc/transport/tcp/tcp_transport.h"
#include "cc/transport/tcp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kProcesses = 3;

struct Connected {
  std::unique_ptr<Transport> transport;
  std::function<void()> leave;
};

template <typename Kind>
std::vector<Connected> Owned(std::vector<std::unique_ptr<Kind>> made) {
  std::vector<Connected> all;
  for (std::unique_ptr<Kind>& one : made) {
    Kind* const transport = one.get();
    all.push_back({std::move(one), [transport] { transport->Leave(); }});
  }
  return all;
}

std::vector<Connected> ConnectTcp(const std::vector<Transport::Events*>& events) {
  std::vector<std::unique_ptr<TcpTransport>> made;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    made.push_back(std::move(TcpTransport::Create(process, events[process]).value()));
    for (uint32_t other = 0; other < process; ++other) {
      const auto [to_other, to_process] = Connection();
      EXPECT_TRUE(made[process]->AddPeer(other, {to_other}).ok());
      EXPECT_TRUE(made[other]->AddPeer(process, {to_process}).ok());
    }
  }
  return Owned(std::move(made));
}

class LeaveTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ShmAndTcp, LeaveTest, testing::Bool());

TEST_P(LeaveTest, AfterItsLastCallAProcessIsMissedByNobody) {
  MessageRegistry registry;
  for (const char* list : {"all_reduce/ring", "all_reduce/direct", "all_reduce/flat"}) {
    for (const int64_t bytes : {int64_t{64}, int64_t{12} << 10, int64_t{3} << 20}) {
      std::vector<std::unique_ptr<Executor>> executors;
      std::vector<Transport::Events*> events;
      for (uint32_t process = 0; process < kProcesses; ++process) {
        executors.push_back(std::make_unique<Executor>(1));
        events.push_back(&executors.back()->messages());
      }
      std::vector<Connected> processes = GetParam() ? ConnectTcp(events) : Owned(ConnectShm(events, 16 << 20));
      MessageGroup group;
      group.list = std::string(list) + "/" + std::to_string(kProcesses);
      for (uint32_t rank = 0; rank < kProcesses; ++rank) {
        group.ranks.push_back({rank, rank});
        group.lists.push_back(registry.Find(group.list, rank));
      }
      std::vector<std::thread> threads;
      for (uint32_t process = 0; process < kProcesses; ++process) {
        executors[process]->messages().Connect(processes[process].transport.get());
        auto site = MessageSite::Make({"psum", "data", "none", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 77,
                                      0, {group}, process);
        ASSERT_TRUE(site.ok() && site.value()->SetLeaves({{DType::kS8, bytes}}, executors[process]->stats()).ok());
        threads.push_back(*StartThread([&, process, site = site.value()] {
          for (int64_t run = 0; run < 3; ++run) {
            std::vector<std::byte> values(static_cast<size_t>(bytes), std::byte{1});
            std::promise<Status> end;
            executors[process]->messages().Arrive(site, run, process, {{values.data()}, {values.data()}},
                                                  [&](const Status& status) { end.set_value(status); });
            const Status status = end.get_future().get();
            EXPECT_TRUE(status.ok()) << list << " " << bytes << ": " << status.message();
            EXPECT_EQ(values, std::vector<std::byte>(static_cast<size_t>(bytes), std::byte{kProcesses}));
          }
          processes[process].leave();
        }));
      }
      for (std::thread& thread : threads) thread.join();
      executors.clear();  // destroyed before the transports, which the executors' threads may still flush
    }
  }
}

}  // namespace
}  // namespace jaxcomm
