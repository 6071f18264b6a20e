#include "cc/transport/shm/shm_transport.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/thread.h"
#include "cc/transport/shm/testing/job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr size_t kSlot = Transport::kMaxMessage;
const Sent kIgnoreSent = [](const Status&) {};

// A posted message and its result.
struct Expected {
  explicit Expected(size_t bytes) : memory(bytes) {}

  Received Done() {
    return [this](const Status& status, std::shared_ptr<const std::byte> bytes) {
      ok = status.ok();
      message = status.message();
      view = std::move(bytes);
      come.Add();
    };
  }
  bool Has(const std::vector<std::byte>& content) {
    return ok &&
           (content.empty() || std::memcmp(view ? view.get() : memory.data(), content.data(), content.size()) == 0);
  }

  std::vector<std::byte> memory;
  std::shared_ptr<const std::byte> view;
  bool ok = false;
  std::string message;
  Counter come;
};

TEST(ShmTransportTest, AMessageOfAnySizeComesWholeWhetherItIsPostedBeforeOrAfter) {
  ShmJob job(2);
  uint32_t call = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{4096}, size_t{4097}, size_t{70000}, kSlot}) {
    for (const bool early : {false, true}) {
      for (const bool accepts_view : {false, true}) {
        const MessageId id = Id(++call, 0, 1);
        const std::vector<std::byte> content = Content(id, bytes);
        Expected expected(bytes);
        if (!early) job[1].Post(0, id, All(expected.memory), accepts_view, expected.Done());
        Counter sent;
        job[0].Send({{1, id}}, All(content), [&](const Status& status) {
          EXPECT_TRUE(status.ok());
          sent.Add();
        });
        job[0].Notify(1, "sent");
        job[0].Flush();
        ASSERT_TRUE(sent.Await(1));
        if (early) {
          job.events(1).AwaitNotices(0, call);
          job[1].Post(0, id, All(expected.memory), accepts_view, expected.Done());
        }
        ASSERT_TRUE(expected.come.Await(1));
        EXPECT_TRUE(expected.Has(content)) << bytes << " bytes, early " << early << ", view " << accepts_view;
        EXPECT_TRUE(!expected.view || accepts_view);
        EXPECT_TRUE(expected.view || !accepts_view || bytes <= 4096);
        job.events(1).AwaitNotices(0, call);
      }
    }
  }
}

TEST(ShmTransportTest, GapsAreLeftAlone) {
  ShmJob job(2);
  for (const int64_t bytes : {int64_t{100}, int64_t{10000}}) {
    const MessageId id = Id(static_cast<uint32_t>(bytes), 0, 1);
    const std::vector<std::byte> content = Content(id, static_cast<size_t>(2 * bytes));
    std::vector<std::byte> memory(static_cast<size_t>(3 * bytes), std::byte{9});
    Counter come;
    job[1].Post(0, id, {{memory.data(), bytes, 64}, {memory.data() + 2 * bytes, bytes, 64 + 2 * bytes}}, false,
                [&](const Status& status, const std::shared_ptr<const std::byte>&) {
                  EXPECT_TRUE(status.ok());
                  come.Add();
                });
    job[0].Send({{1, id}}, {{content.data(), bytes, 64}, {content.data() + bytes, bytes, 64 + 2 * bytes}}, kIgnoreSent);
    job[0].Flush();
    ASSERT_TRUE(come.Await(1));
    EXPECT_EQ(std::memcmp(memory.data(), content.data(), static_cast<size_t>(bytes)), 0);
    EXPECT_EQ(std::memcmp(memory.data() + 2 * bytes, content.data() + bytes, static_cast<size_t>(bytes)), 0);
    for (int64_t at = bytes; at < 2 * bytes; ++at) ASSERT_EQ(memory[static_cast<size_t>(at)], std::byte{9});
  }
}

TEST(ShmTransportTest, AViewBeginsWithByteZeroOfTheMessage) {
  const std::vector<std::byte> content = Content(Id(1, 0, 1), 10000);
  ShmJob job(2);
  Expected expected(10000);
  job[1].Post(0, Id(1, 0, 1), {{expected.memory.data(), 10000, 3 << 20}}, true, expected.Done());
  job[0].Send({{1, Id(1, 0, 1)}}, {{content.data(), 10000, 3 << 20}}, kIgnoreSent);
  job[0].Flush();
  ASSERT_TRUE(expected.come.Await(1));
  ASSERT_TRUE(expected.view);
  EXPECT_EQ(std::memcmp(expected.view.get() + (3 << 20), content.data(), content.size()), 0);
}

TEST(ShmTransportTest, OneSendReachesEveryReceiver) {
  ShmJob job(4, 3 * kSlot);
  for (const size_t bytes : {size_t{1000}, kSlot}) {
    for (uint32_t round = 0; round < 20; ++round) {
      const uint32_t call = round + static_cast<uint32_t>(bytes);
      const std::vector<std::byte> content = Content(Id(call, 0, 0), bytes);
      std::vector<Receiver> receivers;
      std::vector<std::unique_ptr<Expected>> expected;
      for (uint32_t to = 1; to < 4; ++to) {
        expected.push_back(std::make_unique<Expected>(bytes));
        receivers.push_back({to, Id(call, 0, to)});
        job[to].Post(0, Id(call, 0, to), All(expected.back()->memory), to % 2 == 0, expected.back()->Done());
      }
      Counter sent;
      job[0].Send(receivers, All(content), [&](const Status&) { sent.Add(); });
      job[0].Flush();
      ASSERT_TRUE(sent.Await(1));
      for (const auto& one : expected) {
        ASSERT_TRUE(one->come.Await(1));
        EXPECT_TRUE(one->Has(content));
      }
    }
  }
}

TEST(ShmTransportTest, NoticesComeInOrderAndBeforeMessagesThatWereSentLater) {
  // Sends far more than the ring holds, and flushes only at the end.
  class Events : public RecordedEvents {
   public:
    using RecordedEvents::RecordedEvents;
    void OnNotice(uint32_t, std::string_view notice) override {
      uint32_t number;
      std::memcpy(&number, notice.data(), sizeof(number));
      EXPECT_EQ(number, count++);
    }
    std::atomic<uint32_t> count{0};
  } events(1);
  RecordedEvents other(0);
  auto sender = ShmTransport::Create(0, 2, &other, 4 * kSlot);
  auto receiver = ShmTransport::Create(1, 2, &events, 4 * kSlot);
  ASSERT_TRUE(sender.ok() && receiver.ok());
  ShmTransport& from = *sender.value();
  ShmTransport& to = *receiver.value();
  ASSERT_TRUE(from.AddPeer(1, to.nonce(), OpenFile(getpid(), to.fd())).ok());
  ASSERT_TRUE(to.AddPeer(0, from.nonce(), OpenFile(getpid(), from.fd())).ok());
  constexpr uint32_t kNotices = 3000;
  std::vector<std::vector<std::byte>> memory(kNotices);
  Counter come;
  for (uint32_t number = 0; number < kNotices; number += 10) {
    memory[number].resize(number % 20 == 0 ? 50 : 20000);
    to.Post(0, Id(1, 0, 1, number), All(memory[number]), true, [&, number](const Status& status, auto) {
      EXPECT_TRUE(status.ok());
      EXPECT_GT(events.count, number);
      come.Add();
    });
  }
  for (uint32_t number = 0; number < kNotices; ++number) {
    std::string notice(sizeof(number) + number % 4000, 'x');
    std::memcpy(notice.data(), &number, sizeof(number));
    from.Notify(1, notice);
    if (number % 10 == 0) {
      const std::vector<std::byte> content(memory[number].size());
      Counter sent;
      from.Send({{1, Id(1, 0, 1, number)}}, All(content), [&](const Status&) { sent.Add(); });
      ASSERT_TRUE(sent.Await(1));
    }
  }
  from.Flush();
  ASSERT_TRUE(come.Await(kNotices / 10));
}

TEST(ShmTransportTest, HeldViewsStopOnlyTheirHolder) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), kSlot);
  ShmJob job(3, 8 * kSlot);
  std::vector<std::unique_ptr<Expected>> slow;
  Counter sent;
  for (uint32_t index = 0; index < 20; ++index) {  // the share of process 1 is 4 slots
    slow.push_back(std::make_unique<Expected>(kSlot));
    job[1].Post(0, Id(1, 0, 1, index), All(slow.back()->memory), true, slow.back()->Done());
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), [&](const Status&) { sent.Add(); });
  }
  job[0].Flush();
  for (uint32_t index = 0; index < 4; ++index) ASSERT_TRUE(slow[index]->come.Await(1));
  for (uint32_t index = 0; index < 50; ++index) {
    Expected quick(kSlot);
    job[2].Post(0, Id(2, 0, 2, index), All(quick.memory), true, quick.Done());
    job[0].Send({{2, Id(2, 0, 2, index)}}, All(content), kIgnoreSent);
    job[0].Flush();
    ASSERT_TRUE(quick.come.Await(1));
    EXPECT_TRUE(quick.Has(content));
  }
  EXPECT_EQ(sent.count(), 4);
  for (uint32_t index = 0; index < 20; ++index) {
    ASSERT_TRUE(slow[index]->come.Await(1));
    EXPECT_TRUE(slow[index]->Has(content));
    slow[index]->view = nullptr;
  }
  EXPECT_TRUE(sent.Await(20));
}

TEST(ShmTransportTest, AViewOutlivesBothTransports) {
  Expected expected(kSlot);
  const std::vector<std::byte> content = Content(Id(1, 0, 1), kSlot);
  {
    ShmJob job(2);
    job[1].Post(0, Id(1, 0, 1), All(expected.memory), true, expected.Done());
    job[0].Send({{1, Id(1, 0, 1)}}, All(content), kIgnoreSent);
    job[0].Flush();
    ASSERT_TRUE(expected.come.Await(1));
  }
  ASSERT_TRUE(expected.view);
  EXPECT_TRUE(expected.Has(content));
  expected.view = nullptr;
}

TEST(ShmTransportTest, EarlyMessagesDoNotBlockOthers) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), kSlot);
  ShmJob job(2, 4 * kSlot);
  constexpr uint32_t kEarly = 40;  // messages that fill the arena ten times
  for (uint32_t index = 0; index < kEarly; ++index) {
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), kIgnoreSent);
  }
  Expected other(kSlot);
  job[1].Post(0, Id(2, 0, 1), All(other.memory), true, other.Done());
  job[0].Send({{1, Id(2, 0, 1)}}, All(content), kIgnoreSent);
  job[0].Flush();
  ASSERT_TRUE(other.come.Await(1));
  for (uint32_t index = 0; index < kEarly; ++index) {
    Expected expected(kSlot);
    job[1].Post(0, Id(1, 0, 1, index), All(expected.memory), index % 2 == 0, expected.Done());
    ASSERT_TRUE(expected.come.Await(1));
    EXPECT_TRUE(expected.Has(content));
  }
}

TEST(ShmTransportTest, AProcessThatSendsTooEarlyIsReadAgainWhenSomethingIsPosted) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), kSlot);
  ShmJob job(2, 4 * kSlot);
  constexpr uint32_t kEarly = 100;
  for (uint32_t index = 0; index < kEarly; ++index) {
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), kIgnoreSent);
  }
  job[0].Flush();
  for (uint32_t index = kEarly; index-- > 0;) {
    Expected expected(kSlot);
    job[1].Post(0, Id(1, 0, 1, index), All(expected.memory), true, expected.Done());
    ASSERT_TRUE(expected.come.Await(1)) << index;
    EXPECT_TRUE(expected.Has(content));
  }
}

TEST(ShmTransportTest, EarlyMessagesStillComeWhenTheirSenderHasLeft) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), kSlot);
  ShmJob job(2, 4 * kSlot);
  // The receiver keeps two messages as views. Copies of further messages reach the limit of early bytes. The receiver
  // does not read the last two messages until something is posted.
  constexpr uint32_t kEarly = 2 + Transport::kMaxEarlyBytes / kSlot + 2;
  Counter sent;
  for (uint32_t index = 0; index < kEarly; ++index) {
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), [&](const Status&) { sent.Add(); });
  }
  job[0].Flush();
  ASSERT_TRUE(sent.Await(kEarly));
  job.Leave(0);
  job.events(1).AwaitGone(0);
  for (uint32_t index = 0; index < kEarly; ++index) {
    Expected expected(kSlot);
    job[1].Post(0, Id(1, 0, 1, index), All(expected.memory), true, expected.Done());
    ASSERT_TRUE(expected.come.Await(1));
    EXPECT_TRUE(expected.Has(content)) << index << ": " << expected.message;
  }
}

TEST(ShmTransportTest, AHelpingThreadTakesTheMessages) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), 1000);
  ShmJob job(2);
  for (uint32_t index = 0; index < 100; ++index) {
    Expected expected(1000);
    std::thread::id taker;
    job[1].Post(0, Id(1, 0, 1, index), All(expected.memory), false, [&](const Status& status, auto view) {
      taker = std::this_thread::get_id();
      expected.Done()(status, std::move(view));
    });
    std::thread sender;
    job[1].Help(kTestLimit, /*yields=*/index % 2 == 1, [&] {
      if (sender.joinable()) return expected.come.count() == 1;
      sender = *StartThread([&] {  // sent during Help, so that no other thread receives the message
        job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), kIgnoreSent);
        job[0].Flush();
      });
      return false;
    });
    const bool helped = sender.joinable();  // false: the progress thread was polling, so Help only flushed
    if (!helped) {
      job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), kIgnoreSent);
      job[0].Flush();
    } else {
      sender.join();
    }
    ASSERT_TRUE(expected.come.Await(1));
    EXPECT_TRUE(expected.Has(content));
    if (helped) {
      EXPECT_EQ(taker, std::this_thread::get_id());
    }
  }
}

TEST(ShmTransportTest, AfterHelpTheProgressThreadGoesOn) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), kSlot);
  ShmJob job(2, 4 * kSlot);
  std::vector<std::unique_ptr<Expected>> expected;
  for (uint32_t index = 0; index < 50; ++index) {
    expected.push_back(std::make_unique<Expected>(kSlot));
    job[1].Post(0, Id(1, 0, 1, index), All(expected.back()->memory), false, expected.back()->Done());
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), kIgnoreSent);
    job[0].Flush();
    job[1].Help(std::chrono::microseconds(index % 3 * 100), /*yields=*/index % 2 == 1, [] { return false; });
  }
  for (const auto& each : expected) ASSERT_TRUE(each->come.Await(1));
}

TEST(ShmTransportTest, UnexpectedMessagesAreTakenOnceExpected) {
  const std::vector<std::byte> content = Content(Id(0, 0, 0), 1000);
  ShmJob job(2);
  job[1].EndExpecting();
  for (uint32_t index = 0; index < 200; ++index) {
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), kIgnoreSent);
    job[0].Help(kTestLimit, /*yields=*/false, [] { return true; });  // flushes, but does not wake the dozing receiver
    Expected expected(1000);
    job[1].Post(0, Id(1, 0, 1, index), All(expected.memory), false, expected.Done());
    job[1].Expect();
    ASSERT_TRUE(expected.come.Await(1));
    EXPECT_TRUE(expected.Has(content));
    job[1].EndExpecting();
  }
}

TEST(ShmTransportTest, AMessageOfAnotherSizeCutsItsSenderOff) {
  const std::vector<std::byte> content(100);
  ShmJob job(2);
  Expected expected(99);
  job[1].Post(0, Id(1, 0, 1), All(expected.memory), true, expected.Done());
  job[0].Send({{1, Id(1, 0, 1)}}, All(content), kIgnoreSent);
  job[0].Flush();
  ASSERT_TRUE(expected.come.Await(1));
  EXPECT_FALSE(expected.ok);
  EXPECT_EQ(
      expected.message,
      "process 0 has been cut off: it sent 100 of 100 bytes at offset 0 of a message where 99 of 99 bytes at offset 0 "
      "are expected.\n  Cure: run the same jaxcomm and the same program in all processes.");
  job.events(0).AwaitGone(1);
  EXPECT_EQ(job.events(0).gone()[1], "process 1 has cut this process off; its own error says why");
}

TEST(ShmTransportTest, AProcessThatLeavesSendsAGoodbye) {
  const std::vector<std::byte> content = Content(Id(3, 1, 0), 100);
  ShmJob job(3);
  Expected expected(100), early(100);
  job[0].Post(1, Id(1, 1, 0), All(expected.memory), false, expected.Done());
  job[1].Send({{0, Id(3, 1, 0)}}, All(content), kIgnoreSent);
  job.Leave(1);
  ASSERT_TRUE(expected.come.Await(1));
  EXPECT_EQ(expected.message, "process 1 has left");
  EXPECT_EQ(job.events(0).gone()[1], "process 1 has left");
  EXPECT_EQ(job.events(0).left().count(1), 1u);
  Counter sent;
  job[0].Send({{1, Id(2, 0, 1)}, {2, Id(2, 0, 2)}}, All(content), [&](const Status& status) {
    EXPECT_EQ(status.message(), "process 1 has left");
    sent.Add();
  });
  job[0].Notify(1, "nobody");
  job[0].Flush();
  EXPECT_TRUE(sent.Await(1));
  job[0].Post(1, Id(3, 1, 0), All(early.memory), false, early.Done());  // the early message is kept after Leave
  ASSERT_TRUE(early.come.Await(1));
  EXPECT_TRUE(early.Has(content));
  Expected late(100);
  job[0].Post(1, Id(4, 1, 0), All(late.memory), false, late.Done());
  ASSERT_TRUE(late.come.Await(1));
  EXPECT_EQ(late.message, "process 1 has left");
  Expected other(100);
  job[2].Post(0, Id(2, 0, 2), All(other.memory), false, other.Done());
  ASSERT_TRUE(other.come.Await(1));
  EXPECT_TRUE(other.ok);
}

TEST(ShmTransportTest, SendsThatWaitEndWithTheirReceiver) {
  const std::vector<std::byte> content(kSlot);
  ShmJob job(3, 2 * kSlot);
  Counter sent, failed;
  std::vector<std::unique_ptr<Expected>> held;
  for (uint32_t index = 0; index < 10; ++index) {
    held.push_back(std::make_unique<Expected>(kSlot));
    job[1].Post(0, Id(1, 0, 1, index), All(held.back()->memory), true, held.back()->Done());
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content),
                [&](const Status& status) { (status.ok() ? sent : failed).Add(); });
  }
  job[0].Flush();
  ASSERT_TRUE(held[0]->come.Await(1));
  job.Leave(1);
  EXPECT_TRUE(failed.Await(9));
  EXPECT_EQ(sent.count(), 1);
}

TEST(ShmTransportTest, ACancelledCallGetsNoCallback) {
  const std::vector<std::byte> content(kSlot, std::byte{1});
  ShmJob job(2, 2 * kSlot);
  Expected expected(kSlot);
  Counter sent;
  job[1].Post(0, Id(1, 0, 1), All(expected.memory), false, expected.Done());
  job[1].Cancel(Id(1, 0, 1).call);
  for (uint32_t index = 0; index < 100; ++index) {  // the slots of all messages must be released
    job[0].Send({{1, Id(1, 0, 1, index)}}, All(content), [&](const Status&) { sent.Add(); });
    job[0].Flush();
  }
  ASSERT_TRUE(sent.Await(100));
  job[1].Post(0, Id(1, 0, 1, 7), All(expected.memory), false, expected.Done());
  Expected other(kSlot);
  job[1].Post(0, Id(2, 0, 1), All(other.memory), false, other.Done());
  job[0].Send({{1, Id(2, 0, 1)}}, All(content), kIgnoreSent);
  job[0].Flush();
  ASSERT_TRUE(other.come.Await(1));
  EXPECT_EQ(expected.come.count(), 0);
  EXPECT_EQ(expected.memory, std::vector<std::byte>(kSlot));
}

TEST(ShmTransportTest, ACancelledSendLetsOthersPass) {
  const std::vector<std::byte> content(kSlot, std::byte{1});
  ShmJob job(2, 1 * kSlot);
  Expected held(kSlot), other(kSlot);
  job[1].Post(0, Id(1, 0, 1), All(held.memory), true, held.Done());
  job[0].Send({{1, Id(1, 0, 1)}}, All(content), kIgnoreSent);
  auto memory = std::make_unique<std::vector<std::byte>>(kSlot);
  job[0].Send({{1, Id(2, 0, 1)}}, All(std::as_const(*memory)), [](const Status&) { ADD_FAILURE(); });
  job[0].Flush();
  ASSERT_TRUE(held.come.Await(1));
  job[0].Cancel(Id(2, 0, 1).call);
  memory = nullptr;
  job[1].Post(0, Id(3, 0, 1), All(other.memory), false, other.Done());
  job[0].Send({{1, Id(3, 0, 1)}}, All(content), kIgnoreSent);
  held.view = nullptr;
  ASSERT_TRUE(other.come.Await(1));
}

TEST(ShmTransportTest, MistakesOfTheCallerAreErrors) {
  ShmJob job(2);
  Expected expected(2 * kSlot);
  std::string sent;
  job[0].Send({{1, Id(1, 0, 1)}}, All(std::as_const(expected.memory)),
              [&](const Status& status) { sent = status.message(); });
  EXPECT_EQ(sent, "a message of 512 KiB; at most 256 KiB can be sent at once.");
  job[0].Send({{5, Id(1, 0, 5)}}, {}, [&](const Status& status) { sent = status.message(); });
  EXPECT_EQ(sent, "process 5 is not another process of this host.");
  job[0].Post(1, Id(1, 1, 0), All(expected.memory), false, expected.Done());
  EXPECT_EQ(expected.message, "a message from process 1 of 512 KiB: no such process, or too many bytes.");
  job[0].Post(1, Id(2, 1, 0), {}, false, [](const Status&, auto) {});
  job[0].Post(1, Id(2, 1, 0), {}, false, expected.Done());
  EXPECT_EQ(expected.message, "a message from process 1 is posted twice.");
}

}  // namespace
}  // namespace jaxcomm
