// Tests that no byte arrives in a caller's memory after a cancel or a fence, even if libfabric still moves bytes.
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cc/transport/fabric/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kSegments = 8;
constexpr std::byte kRefilled{0xEE};

template <typename Provider>
class FabricFenceTest : public testing::Test {
 protected:
  // If one process fences its path, the connection is reset. This may end the other process's path before that process
  // fences it, so Node ignores OnPeerGone.
  class Node : public FabricNode<Provider> {
   public:
    using FabricNode<Provider>::FabricNode;
    ~Node() override { this->transport.reset(); }  // ends the events before this object is destroyed
    void OnPeerGone(uint32_t, const Status&) override {}
  };

  void SetUp() override {
    if (!OpenEndpoint(Provider::kProvider).ok()) GTEST_SKIP() << "this machine lacks libfabric or the provider";
  }
  // Begins a call in which process 1 receives kSegments segments, and waits until a segment has arrived.
  void Begin(Node& a, Node& b, uint32_t call, Bytes& into) {
    b.Await([&] {
      b.received = 0;
      return true;
    });
    into.assign(kSegments * Transport::kMaxMessage, std::byte{0});
    for (uint32_t i = 0; i < kSegments; ++i) {
      const Span span{into.data() + i * Transport::kMaxMessage, Transport::kMaxMessage, 0};
      b.transport->Post(0, Id(call, 0, 1, i), {span}, false, b.OnReceived());
      const ConstSpan source{data_.data() + i * Transport::kMaxMessage, Transport::kMaxMessage, 0};
      a.transport->Send({{1, Id(call, 0, 1, i)}}, {source}, [](const Status&) {});
    }
    a.transport->Flush();
    b.Await([&] { return b.received > static_cast<int>(call % 3); });
  }
  // Overwrites the memory after a cancel or a fence. From then on, nothing may be stored to the memory.
  void Refill(Node& b, Bytes& into) {
    into.assign(into.size(), kRefilled);
    b.Await([&] {
      interrupted_ += b.received < static_cast<int>(kSegments);
      return true;
    });
  }
  void ExpectNoLateByte(const Bytes& into) {
    if (into.empty()) return;
    EXPECT_TRUE(Same(into, Bytes(into.size(), kRefilled)));
  }

  const Bytes data_ = Pattern(kSegments * Transport::kMaxMessage, 1);
  int interrupted_ = 0;  // number of calls that were cancelled or fenced before they were complete
};

TYPED_TEST_SUITE(FabricFenceTest, FabricProviders);

TYPED_TEST(FabricFenceTest, NoByteArrivesAfterACancel) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  Bytes memories[2];  // each buffer is checked after the next call, so that late bytes have time to arrive
  for (uint32_t call = 0; call < TypeParam::kTries; ++call) {
    Bytes& into = memories[call % 2];
    this->ExpectNoLateByte(into);
    this->Begin(a, b, call, into);
    b.transport->Cancel(Id(call, 0, 1).call);
    this->Refill(b, into);
    a.transport->Cancel(Id(call, 0, 1).call);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (const Bytes& into : memories) this->ExpectNoLateByte(into);
  EXPECT_GT(this->interrupted_, 0);
}

TYPED_TEST(FabricFenceTest, NoByteArrivesAfterAFenceAndTheNextPathWorks) {
  typename TestFixture::Node a(0), b(1);
  Bytes memories[2];
  for (uint32_t call = 0; call < TypeParam::kTries; ++call) {
    SipKey key{};
    StoreNumber(call + 1, reinterpret_cast<std::byte*>(key.data()));
    Connect(a, b, key);
    Bytes& into = memories[call % 2];
    this->ExpectNoLateByte(into);
    this->Begin(a, b, call, into);
    b.transport->Fence(0, Status(Code::kInternal, "it is silent"));
    this->Refill(b, into);
    a.transport->Fence(1, Status(Code::kInternal, "it is silent"));
    a.transport->Cancel(Id(call, 0, 1).call);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (const Bytes& into : memories) this->ExpectNoLateByte(into);
  EXPECT_GT(this->interrupted_, 0);
}

}  // namespace
}  // namespace jaxcomm
