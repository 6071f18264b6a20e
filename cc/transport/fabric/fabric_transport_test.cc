// Tests of the features that only FabricTransport has; socket_transport_test.cc has the tests of all transports over
// sockets.
#include "cc/transport/fabric/fabric_transport.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/transport/fabric/testing/node.h"
#include "cc/transport/testing/drop_packets.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Node = FabricNode<RxmOverTcp>;
using Raw = RawFabric<RxmOverTcp>;

class FabricTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!OpenEndpoint(RxmOverTcp::kProvider).ok()) GTEST_SKIP() << "this machine lacks libfabric or the provider";
  }
};

TEST_F(FabricTransportTest, AcknowledgedFramesAreProgress) {
  Node a(0), b(1);
  Connect(a, b);
  a.transport->Notify(1, "here");
  a.transport->Flush();
  while (a.transport->ProgressTo(1).confirmed < 2) std::this_thread::yield();  // the trial and the notice
  while (a.transport->ProgressTo(1).unanswered > 0) std::this_thread::yield();
}

TEST_F(FabricTransportTest, APathOnWhichTheTrialFailsIsNotAdded) {
  Node a(0), b(1);
  const auto [ours, its] = Connection();
  send(ours, "+", 1, MSG_NOSIGNAL);
  const FabricPath nowhere{its, a.transport->domain().address, kFabricDownKey, kFabricUpKey};
  EXPECT_EQ(a.transport->AddPeer(1, nowhere, std::chrono::milliseconds(100)).message(),
            "no frame has arrived over libfabric's tcp;ofi_rxm");
  close(ours);
  const auto [to_b, to_a] = FabricPaths(a, b);
  ASSERT_TRUE(b.transport->AddPeer(0, to_a).ok());
  EXPECT_TRUE(a.transport->AddPeer(1, to_b, kTestLimit).ok());
  EXPECT_TRUE(a.gone().empty());
}

TEST_F(FabricTransportTest, FramesToAStoppedProcessAreNotUnanswered) {
  Node a(0);
  Raw raw(a, 1);
  raw.Send('+');
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  for (char byte = 0; byte != '?'; recv(raw.connection(), &byte, 1, MSG_DONTWAIT)) a.transport->ProgressTo(1);
  while (a.transport->ProgressTo(1).unanswered > 0) std::this_thread::yield();  // until the question is acknowledged
  raw.Send('!');  // the process answers the question, so it runs and should have acknowledged the notice
  while (a.transport->ProgressTo(1).unanswered == 0) std::this_thread::yield();
  a.transport->Fence(1, Status(Code::kInternal, "it is silent"));
  EXPECT_EQ(a.transport->ProgressTo(1).unanswered, 0u);
}

TEST_F(FabricTransportTest, QuestionsThatAHostDoesNotAcknowledgeAreUnanswered) {
  Node a(0);
  Raw raw(a, 1);
  raw.Send('+');
  DropPackets(raw.connection());
  while (a.transport->ProgressTo(1).unanswered == 0) std::this_thread::yield();  // until the trial has been sent
}

TEST_F(FabricTransportTest, AProcessThatReceivesNoFrameIsGone) {
  Node a(0, "", std::chrono::milliseconds(600));
  Raw raw(a, 1);
  raw.Send('+');
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  std::thread answers([&] {
    for (char byte; recv(raw.connection(), &byte, 1, 0) == 1;) {
      if (byte == '?') send(raw.connection(), "!", 1, MSG_NOSIGNAL);  // fails when the path ends
    }
  });
  EXPECT_EQ(a.AwaitGone(1),
            "process 1 is gone: for 0.6 s no frame has arrived over libfabric's tcp;ofi_rxm, while the process answers "
            "over TCP");
  answers.join();
}

TEST_F(FabricTransportTest, OtherBytesOverTheConnectionCutAProcessOff) {
  Node a(0);
  Raw raw(a, 1);
  raw.Send('x');
  EXPECT_EQ(a.AwaitGone(1),
            "process 1 has been cut off: it sent unexpected bytes over the connection that shows whether it is alive");
}

TEST_F(FabricTransportTest, FramesWithAnotherKeyAreDropped) {
  Node a(0), b(1);
  const auto [to_b, to_a] = FabricPaths(a, b, kFabricUpKey);
  FabricPath wrong = to_a;
  wrong.receives = {9, 9, 9};
  ASSERT_TRUE(a.transport->AddPeer(1, to_b).ok());
  ASSERT_TRUE(b.transport->AddPeer(0, wrong).ok());
  a.transport->Notify(1, "which is dropped");
  a.transport->Flush();
  while (b.transport->forged(0) < 2) std::this_thread::yield();
  b.transport->Notify(0, "which arrives");
  b.transport->Flush();
  EXPECT_EQ(a.AwaitNotices(1, 1)[0], "which arrives");
  EXPECT_GE(b.transport->forged(0), 2);  // the trial and the notice
}

TEST_F(FabricTransportTest, ASenderWaitsWhileItsViewsAreHeld) {
  constexpr uint32_t kMessages = 40;  // more than the window
  Node a(0), b(1);
  Connect(a, b);
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  std::mutex mutex;
  std::vector<std::shared_ptr<const std::byte>> held;
  for (uint32_t i = 0; i < kMessages; ++i) {
    b.transport->Post(0, Id(1, 0, 1, i), All(into), /*accepts_view=*/true,
                      [&, done = b.OnReceived()](const Status& status, std::shared_ptr<const std::byte> view) {
                        {
                          std::lock_guard<std::mutex> lock(mutex);
                          held.push_back(std::move(view));
                        }
                        done(status, nullptr);
                      });
    a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  }
  a.transport->Flush();
  const auto release = [&] {
    std::lock_guard<std::mutex> lock(mutex);
    held.clear();
  };
  b.Await([&] { return b.received >= 4; });
  while (b.transport->MayKeep(0)) std::this_thread::yield();
  const auto received = [&] {
    int count = 0;
    b.Await([&] {
      count = b.received;
      return true;
    });
    return count;
  };
  EXPECT_LT(received(), static_cast<int>(kMessages));
  while (received() < static_cast<int>(kMessages)) {
    release();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  release();
  while (!b.transport->MayKeep(0)) std::this_thread::yield();
  a.Await([&] { return a.sent == static_cast<int>(kMessages); });
}

TEST_F(FabricTransportTest, AViewMayOutliveItsTransport) {
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  std::shared_ptr<const std::byte> held;
  {
    Node a(0), b(1);
    Connect(a, b);
    b.transport->Post(0, Id(1, 0, 1), All(into), /*accepts_view=*/true,
                      [&, done = b.OnReceived()](const Status& status, std::shared_ptr<const std::byte> view) {
                        held = std::move(view);
                        done(status, nullptr);
                      });
    a.transport->Send({{1, Id(1, 0, 1)}}, All(data), a.OnSent());
    a.transport->Flush();
    b.Await([&] { return b.received == 1; });
  }
  EXPECT_TRUE(Same(Bytes(held.get(), held.get() + data.size()), data));
}

TEST_F(FabricTransportTest, AnEndedConnectionEndsThePath) {
  Node a(0);
  Raw raw(a, 1);
  raw.Send('+');
  raw.Close();
  EXPECT_EQ(a.AwaitGone(1).find("process 1 is gone: connection "), 0u);
}

}  // namespace
}  // namespace jaxcomm
