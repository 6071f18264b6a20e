// Tests with many messages at once: with held views, with cancelled calls, and with a process that writes garbage.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/thread.h"
#include "cc/transport/shm/layout.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr int64_t kSlot = Transport::kMaxMessage;

size_t RandomSize(std::mt19937& random) {
  static constexpr size_t kLargest[] = {64, 4096, 5000, 40000, 200000, kSlot};
  return random() % (kLargest[random() % 6] + 1);
}

class TrafficTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, TrafficTest, testing::Range(0u, 6u));

// Every process sends messages of random sizes to random sets of receivers. The receivers post the messages in another
// order, post some of them late, and keep some views for a while.
TEST_P(TrafficTest, EveryMessageComesWhole) {
  constexpr uint32_t kProcesses = 4, kMessages = 150;
  ShmJob job(kProcesses, (3 + GetParam() * 4) * kSlot);
  struct Planned {
    uint32_t from, index;
    size_t bytes;
    std::vector<uint32_t> to;
  };
  std::mt19937 random(GetParam());
  std::vector<Planned> planned;
  size_t receipts = 0;
  for (uint32_t from = 0; from < kProcesses; ++from) {
    for (uint32_t index = 0; index < kMessages; ++index) {
      Planned message{from, index, RandomSize(random), {}};
      for (uint32_t to = 0; to < kProcesses; ++to) {
        if (to != from && random() % 2 == 0) message.to.push_back(to);
      }
      receipts += message.to.size();
      planned.push_back(std::move(message));
    }
  }
  const auto id = [](const Planned& message, uint32_t to) { return Id(1, message.from, to, message.index); };
  const auto content = [&](const Planned& message) { return Content(id(message, 0), message.bytes); };
  Counter come, sent;
  std::mutex mutex;
  std::vector<std::shared_ptr<const std::byte>> views;  // kept until `dropper` releases them
  std::atomic<bool> stop{false};
  std::thread dropper = *StartThread([&] {
    while (!stop) {
      std::vector<std::shared_ptr<const std::byte>> dropped;
      {
        std::lock_guard<std::mutex> lock(mutex);
        dropped.swap(views);
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint32_t self = 0; self < kProcesses; ++self) {
    threads.push_back(*StartThread([&, self, order = planned] {  // sends all messages
      for (const Planned& message : order) {
        if (message.from != self) continue;
        const auto bytes = std::make_shared<std::vector<std::byte>>(content(message));
        std::vector<Receiver> to;
        for (const uint32_t process : message.to) to.push_back({process, id(message, process)});
        job[self].Send(to, All(std::as_const(*bytes)), [&sent, bytes](const Status& status) {
          EXPECT_TRUE(status.ok());
          sent.Add();
        });
        if (message.index % 5 == 0) job[self].Flush();
      }
      job[self].Flush();
    }));
    threads.push_back(*StartThread([&, self, order = planned]() mutable {  // posts all messages
      std::mt19937 mine(GetParam() * 10 + self);
      std::shuffle(order.begin(), order.end(), mine);
      for (const Planned& message : order) {
        if (std::find(message.to.begin(), message.to.end(), self) == message.to.end()) continue;
        const auto memory = std::make_shared<std::vector<std::byte>>(message.bytes);
        const bool accepts_view = mine() % 2 == 0, keeps_view = mine() % 4 == 0;
        job[self].Post(message.from, id(message, self), All(*memory), accepts_view,
                       [&, memory, message, keeps_view](const Status& status, const auto& view) {
                         EXPECT_TRUE(status.ok()) << status.message();
                         const std::byte* const bytes = view ? view.get() : memory->data();
                         EXPECT_EQ(std::vector<std::byte>(bytes, bytes + message.bytes), content(message));
                         if (keeps_view) {
                           std::lock_guard<std::mutex> lock(mutex);
                           views.push_back(view);
                         }
                         come.Add();
                       });
      }
    }));
  }
  EXPECT_TRUE(come.Await(receipts)) << come.count() << " of " << receipts;
  EXPECT_TRUE(sent.Await(planned.size()));
  stop = true;
  dropper.join();
  for (std::thread& thread : threads) thread.join();
}

// Senders and receivers cancel calls at random times. The test frees the memory of a call right after Cancel.
TEST_P(TrafficTest, AfterCancelTheMemoryOfACallIsLeftAlone) {
  const std::vector<std::byte> out(kSlot, std::byte{2});
  std::vector<std::byte> in(kSlot);
  ShmJob job(3, 6 * kSlot);
  std::vector<std::thread> threads;
  for (uint32_t self = 0; self < 3; ++self) {
    for (uint32_t number = 0; number < 2; ++number) {
      threads.push_back(*StartThread([&, self, number] {
        std::mt19937 random(GetParam() * 100 + number), mine(GetParam() * 100 + self * 10 + number + 7);
        for (uint32_t round = 0; round < 60; ++round) {
          const uint32_t call = round * 2 + number;
          const size_t bytes = RandomSize(random);  // the same size in all three processes
          const uint32_t next = (self + 1) % 3, before = (self + 2) % 3;
          auto come = std::make_shared<Counter>();
          {
            std::vector<std::byte> sent(bytes, std::byte{1}), received(bytes), received_too(bytes);
            const auto done = [come](const Status&, auto) { come->Add(); };
            job[self].Post(before, Id(call, before, self), All(received), mine() % 2 == 0, done);
            job[self].Send({{next, Id(call, self, next)}, {before, Id(call, self, before)}}, All(std::as_const(sent)),
                           [](const Status&) {});
            job[self].Flush();
            job[self].Post(next, Id(call, next, self), All(received_too), false, done);
            if (mine() % 3 == 0) std::this_thread::yield();
            job[self].Cancel(Id(call, 0, 0).call);
          }
        }
      }));
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t self = 0; self < 3; ++self) EXPECT_TRUE(job.events(self).gone().empty());
  for (uint32_t index = 0; index < 10; ++index) {  // shows that all slots can still be used
    Counter come;
    job[1].Post(0, Id(1000, 0, 1, index), All(in), false, [&](const Status&, auto) { come.Add(); });
    job[0].Send({{1, Id(1000, 0, 1, index)}}, All(out), [](const Status&) {});
    job[0].Flush();
    ASSERT_TRUE(come.Await(1));
  }
  EXPECT_EQ(in, out);
}

// Process 2 exchanges messages, and meanwhile overwrites random words of its own memory file, except in the slots.
TEST_P(TrafficTest, AProcessThatWritesNonsenseHarmsNoOther) {
  std::vector<std::byte> guarded(3 * 1000, std::byte{5}), content(kSlot, std::byte{6});
  ShmJob job(3, 6 * kSlot);
  const int fd = OpenFile(getpid(), job[2].fd());
  struct stat file;
  ASSERT_EQ(fstat(fd, &file), 0);
  const size_t bytes = static_cast<size_t>(file.st_size);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(memory, MAP_FAILED);
  close(fd);
  const size_t channels = bytes - 6 * kSlot;
  std::atomic<bool> stop{false};
  std::thread scribbler = *StartThread([&] {
    std::mt19937_64 random(GetParam());
    // Overwrites the channels to processes 0 and 1. Small values are frequent, because the checks of these processes
    // are more likely to accept them.
    while (!stop) {
      const size_t at = shm::kPage + random() % (channels - shm::kPage - 8);
      const uint64_t word = random() >> (random() % 64);
      std::memcpy(static_cast<std::byte*>(memory) + at / 8 * 8, &word, 8);
      if (random() % 64 == 0) std::this_thread::yield();
    }
  });
  // Guards around the posted memory show writes outside this memory. Processes 0 and 1 keep exchanging messages.
  for (uint32_t index = 0; index < 200; ++index) {
    job[0].Post(2, Id(1, 2, 0, index), {{guarded.data() + 1000, 1000, 0}}, false, [](const Status&, auto) {});
    job[2].Send({{0, Id(1, 2, 0, index)}}, {{content.data(), 1000, 0}}, [](const Status&) {});
    job[0].Send({{2, Id(1, 0, 2, index)}, {1, Id(1, 0, 1, index)}},
                {{content.data(), index % 2 == 0 ? 1000 : kSlot, 0}}, [](const Status&) {});
    job[2].Flush();
    std::vector<std::byte> in(index % 2 == 0 ? 1000 : kSlot);
    Counter come;
    job[1].Post(0, Id(1, 0, 1, index), All(in), index % 3 == 0, [&](const Status& status, auto) {
      EXPECT_TRUE(status.ok());
      come.Add();
    });
    job[0].Flush();
    ASSERT_TRUE(come.Await(1)) << index;
  }
  // Overwrites all words, so that the other processes must notice the garbage.
  stop = true;
  scribbler.join();
  for (size_t at = shm::kPage; at + 8 <= channels; at += 8) {
    const uint64_t word = ~uint64_t{at};
    std::memcpy(static_cast<std::byte*>(memory) + at, &word, 8);
  }
  job[0].Notify(2, "ring");
  job.events(0).AwaitGone(2);
  job.events(1).AwaitGone(2);
  EXPECT_EQ(job.events(0).gone().count(1), 0u);
  EXPECT_EQ(job.events(1).gone().count(0), 0u);
  job[0].Cancel(Id(1, 0, 0).call);
  for (size_t at = 0; at < guarded.size(); ++at) {
    ASSERT_TRUE(guarded[at] == std::byte{5} || (at >= 1000 && at < 2000)) << at;
  }
  munmap(memory, bytes);
}

}  // namespace
}  // namespace jaxcomm
