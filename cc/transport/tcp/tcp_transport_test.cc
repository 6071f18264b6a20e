#include "cc/transport/tcp/tcp_transport.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/transport/tcp/frame.h"
#include "cc/transport/tcp/socket.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

MessageId Id(uint32_t call, uint32_t from, uint32_t to, uint32_t index) {
  return {{1, call, 0, 0}, from, to, index, 0};
}

Bytes Pattern(size_t size, size_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i + i / 251);
  return bytes;
}

// Element by element, which == does, takes long under sanitizers.
bool Same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

std::vector<Span> All(Bytes& bytes) { return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}}; }
std::vector<ConstSpan> All(const Bytes& bytes) { return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}}; }

std::pair<int, int> Connection() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), a = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, any, length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, any, &length), 0);
  EXPECT_EQ(connect(a, any, length), 0);
  const int b = accept(listener, nullptr, nullptr);
  close(listener);
  return {a, b};
}

// A process, and what it has heard of the others.
class Node : public Transport::Events {
 public:
  explicit Node(uint32_t process) : process(process) {
    Result<std::unique_ptr<TcpTransport>> made = TcpTransport::Create(process, this);
    EXPECT_TRUE(made.ok()) << made.status().message();
    transport = std::move(made.value());
  }
  ~Node() override { transport.reset(); }

  void OnNotice(uint32_t from, std::string_view notice) override {
    Record([&] { notices_[from].emplace_back(notice); });
  }
  void OnPeerGone(uint32_t from, const Status& why) override {
    Record([&] { EXPECT_TRUE(gone_.emplace(from, why.message()).second) << "gone twice"; });
  }
  Received OnReceived() {
    return [this](const Status& status, std::shared_ptr<const std::byte>) {
      Record([&] { ++(status.ok() ? received : failed), last_error = status.message(); });
    };
  }
  Sent OnSent() {
    return [this](const Status& status) {
      Record([&] { ++(status.ok() ? sent : failed), last_error = status.message(); });
    };
  }

  void Await(const std::function<bool()>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, condition);
  }
  std::string AwaitGone(uint32_t from) {
    Await([&] { return gone_.count(from) > 0; });
    std::lock_guard<std::mutex> lock(mutex_);
    return gone_[from];
  }
  std::vector<std::string> AwaitNotices(uint32_t from, size_t count) {
    Await([&] { return notices_[from].size() >= count; });
    std::lock_guard<std::mutex> lock(mutex_);
    return notices_[from];
  }

  const uint32_t process;
  std::unique_ptr<TcpTransport> transport;
  int received = 0, sent = 0, failed = 0;
  std::string last_error;

 private:
  void Record(const std::function<void()>& change) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, std::vector<std::string>> notices_;
  std::map<uint32_t, std::string> gone_;
};

void Connect(Node& a, Node& b) {
  const auto [to_b, to_a] = Connection();
  EXPECT_TRUE(a.transport->AddPeer(b.process, to_b).ok());
  EXPECT_TRUE(b.transport->AddPeer(a.process, to_a).ok());
}

// A process whose other end of the connection the test plays itself.
class Raw {
 public:
  Raw(Node& node, uint32_t process) {
    const auto [ours, its] = Connection();
    socket_ = ours;
    EXPECT_TRUE(node.transport->AddPeer(process, its).ok());
  }
  ~Raw() { Close(); }

  void Send(const Bytes& bytes) {
    ASSERT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void Send(const Header& header, const Bytes& payload = {}) {
    Bytes frame(kHeaderBytes);
    EncodeHeader(header, frame.data());
    frame.insert(frame.end(), payload.begin(), payload.end());
    Send(frame);
  }
  void Reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void Close() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  Bytes Read(size_t size) {
    Bytes bytes(size);
    EXPECT_EQ(recv(socket_, bytes.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return bytes;
  }

 private:
  int socket_;
};

TEST(TcpTransportTest, ManyMessagesInAnyOrder) {
  constexpr uint32_t kProcesses = 3;
  for (const unsigned seed : {1u, 2u}) {
    std::mt19937 random(seed);
    Node nodes[kProcesses] = {Node(0), Node(1), Node(2)};
    for (uint32_t a = 0; a < kProcesses; ++a) {
      for (uint32_t b = a + 1; b < kProcesses; ++b) Connect(nodes[a], nodes[b]);
    }
    struct Transfer {
      uint32_t from, to, index;
      Bytes data, into;
    };
    std::vector<Transfer> transfers;
    int counts[kProcesses] = {}, sends[kProcesses] = {};
    for (uint32_t index = 0; index < 300; ++index) {
      const uint32_t from = random() % kProcesses, to = (from + 1 + random() % (kProcesses - 1)) % kProcesses;
      const size_t size = random() % 10 ? random() % 3000 : random() % (Transport::kMaxMessage + 1);
      transfers.push_back({from, to, index, Pattern(size, index), Bytes(size)});
      ++counts[to];
      ++sends[from];
    }
    const auto shuffled = [&] {
      std::vector<Transfer*> order;
      for (Transfer& transfer : transfers) order.push_back(&transfer);
      std::shuffle(order.begin(), order.end(), random);
      return order;
    };
    std::thread receivers([&nodes, order = shuffled()] {
      for (Transfer* const t : order) {
        nodes[t->to].transport->Post(t->from, Id(1, t->from, t->to, t->index), All(t->into), false,
                                     nodes[t->to].OnReceived());
      }
    });
    for (Transfer* const t : shuffled()) {
      nodes[t->from].transport->Send({{t->to, Id(1, t->from, t->to, t->index)}}, All(std::as_const(t->data)),
                                     nodes[t->from].OnSent());
      if (t->index % 5 == 0) nodes[t->from].transport->Flush();
    }
    for (Node& node : nodes) node.transport->Flush();
    receivers.join();
    for (uint32_t i = 0; i < kProcesses; ++i) {
      nodes[i].Await([&] { return nodes[i].received == counts[i] && nodes[i].sent == sends[i]; });
    }
    for (const Transfer& transfer : transfers) EXPECT_TRUE(Same(transfer.into, transfer.data));
    for (Node& node : nodes) EXPECT_EQ(node.failed, 0);
  }
}

TEST(TcpTransportTest, OneMessageForSeveral) {
  Node a(0), b(1), c(2);
  Connect(a, b);
  Connect(a, c);
  for (const size_t size : {size_t{100}, size_t{1} << 20}) {
    const Bytes data = Pattern(size, 1);
    Bytes at_b(size), at_c(size);
    const auto call = static_cast<uint32_t>(size);
    b.transport->Post(0, Id(call, 0, 1, 0), All(at_b), false, b.OnReceived());
    c.transport->Post(0, Id(call, 0, 2, 0), All(at_c), false, c.OnReceived());
    a.sent = b.received = c.received = 0;
    a.transport->Send({{1, Id(call, 0, 1, 0)}, {2, Id(call, 0, 2, 0)}}, All(data), a.OnSent());
    a.transport->Flush();
    b.Await([&] { return b.received == 1; });
    c.Await([&] { return c.received == 1; });
    a.Await([&] { return a.sent == 1; });
    EXPECT_EQ(at_b, data);
    EXPECT_EQ(at_c, data);
  }
}

TEST(TcpTransportTest, NoticesComeInOrderAndBeforeLaterMessages) {
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(4);
  std::promise<size_t> heard;
  const Bytes data(4);
  b.transport->Post(0, Id(1, 0, 1, 0), All(into), false, [&](const Status&, std::shared_ptr<const std::byte>) {
    heard.set_value(b.AwaitNotices(0, 1000).size());
  });
  for (int i = 0; i < 1000; ++i) a.transport->Notify(1, std::to_string(i));
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
  a.transport->Notify(1, std::string(Transport::kMaxNotice, 'x'));
  a.transport->Flush();
  EXPECT_GE(heard.get_future().get(), 1000u);
  const std::vector<std::string> notices = b.AwaitNotices(0, 1001);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(notices[i], std::to_string(i));
}

// A receiver's calls, as the executor makes them; whether this thread took the message.
bool ReceiveWithHelp(Node& sender, Node& receiver, uint32_t index, std::chrono::nanoseconds limit) {
  const Bytes sent = Pattern(1000, index);
  Bytes memory(sent.size());
  std::promise<std::thread::id> taker;
  std::future<std::thread::id> taken = taker.get_future();
  const MessageId id = Id(1, sender.process, receiver.process, index);
  receiver.transport->Post(sender.process, id, All(memory), false, [&](const Status& status, auto) {
    EXPECT_TRUE(status.ok()) << status.message();
    receiver.transport->EndExpecting();
    taker.set_value(std::this_thread::get_id());
  });
  sender.transport->Send({{receiver.process, id}}, All(sent), [](const Status&) {});
  sender.transport->Flush();
  receiver.transport->Help(limit, [&] { return taken.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  receiver.transport->Expect();
  const bool helped = taken.get() == std::this_thread::get_id();
  EXPECT_TRUE(Same(memory, sent));
  return helped;
}

TEST(TcpTransportTest, WhoHelpsTakesMessagesItselfWhenTheLastCallIsNotLongAgo) {
  Node a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; !ReceiveWithHelp(a, b, index, std::chrono::seconds(60)); ++index) {
  }
}

TEST(TcpTransportTest, AfterHelpTheThreadGoesOn) {
  Node a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; index < 100; ++index) ReceiveWithHelp(a, b, index, std::chrono::nanoseconds(0));
}

TEST(TcpTransportTest, MoreThanMayBeEarlyWaitsForItsPost) {
  constexpr uint32_t kMessages = 80;
  Node a(0), b(1);
  Connect(a, b);
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  for (uint32_t i = 0; i < kMessages; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Notify(1, "last");
  a.transport->Flush();
  a.Await([&] { return a.sent >= 63; });
  for (uint32_t i = 0; i < kMessages; ++i) {
    b.transport->Post(0, Id(1, 0, 1, i), All(into), false, b.OnReceived());
    b.Await([&] { return b.received == static_cast<int>(i) + 1; });
    ASSERT_TRUE(Same(into, data));
  }
  EXPECT_EQ(b.AwaitNotices(0, 1)[0], "last");
}

TEST(TcpTransportTest, MoreThanMayBeEarlyIsReadOnWhenACallbackPosts) {
  constexpr uint32_t kMessages = 70;
  Node a(0), b(1);
  Connect(a, b);
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  for (uint32_t i = 0; i < kMessages; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Flush();
  a.Await([&] { return a.sent >= 63; });
  std::promise<void> done;
  std::function<void(uint32_t)> post = [&](uint32_t i) {
    if (i == kMessages) return done.set_value();
    b.transport->Post(0, Id(1, 0, 1, i), All(into), false,
                      [&post, i](const Status&, std::shared_ptr<const std::byte>) { post(i + 1); });
  };
  post(0);
  done.get_future().wait();
  EXPECT_TRUE(Same(into, data));
  a.Await([&] { return a.sent == kMessages; });  // until then it may be read
}

TEST(TcpTransportTest, OneThatIsDestroyedHasLeftAndItsMessagesArrive) {
  Node b(1);
  Bytes into(1 << 20);
  const Bytes data = Pattern(into.size(), 1);
  {
    Node a(0);
    Connect(a, b);
    b.transport->Notify(0, "which nobody reads any more");
    a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
    b.transport->Flush();
  }
  EXPECT_EQ(b.AwaitGone(0), "process 0 has left");
  b.transport->Post(0, Id(1, 0, 1, 0), All(into), false, b.OnReceived());
  b.Await([&] { return b.received == 1; });
  EXPECT_EQ(into, data);
  b.transport->Post(0, Id(1, 0, 1, 1), All(into), false, b.OnReceived());
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(data), b.OnSent());
  b.Await([&] { return b.failed == 2; });
  EXPECT_EQ(b.last_error, "process 0 has left");
}

TEST(TcpTransportTest, OneThatDiesIsGoneAndFailsWhatItOwes) {
  for (const bool reset : {false, true}) {
    Node a(0);
    Raw raw(a, 1);
    Bytes into(100);
    const Bytes data(Transport::kMaxMessage);
    raw.Send({FrameType::kMessage, 100, Id(1, 1, 0, 0)}, Bytes(50));
    a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
    for (uint32_t i = 0; i < 50; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
    a.transport->Flush();
    if (reset) {
      raw.Reset();
      EXPECT_EQ(a.AwaitGone(1), "process 1 is gone: connection reset");
    } else {
      raw.Close();
      EXPECT_EQ(a.AwaitGone(1).find("process 1 is gone: connection "), 0u);
    }
    a.Await([&] { return a.sent + a.failed == 51; });
    EXPECT_GE(a.failed, 2);
    a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
    a.Await([&] { return a.sent + a.failed == 52; });
  }
}

TEST(TcpTransportTest, WhatAProcessSentBeforeItsEndComesBeforeTheNewsOfIt) {
  for (const bool reset : {false, true}) {
    Node a(0);
    Raw raw(a, 1);
    Bytes into(1000), early(1000);
    const Bytes data = Pattern(1000, 1);
    a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
    a.transport->Notify(1, "which nobody reads");  // so that a close is a reset, too
    a.transport->Flush();
    raw.Send({FrameType::kNotice, 0, {}});
    raw.Send({FrameType::kMessage, 1000, Id(1, 1, 0, 1)}, data);
    raw.Send({FrameType::kMessage, 1000, Id(1, 1, 0, 0)}, data);
    reset ? raw.Reset() : raw.Close();
    a.AwaitGone(1);
    EXPECT_EQ(a.received, 1);
    EXPECT_EQ(into, data);
    EXPECT_EQ(a.AwaitNotices(1, 1).size(), 1u);
    a.transport->Post(1, Id(1, 1, 0, 1), All(early), false, a.OnReceived());
    a.Await([&] { return a.received + a.failed == 2; });
    EXPECT_EQ(early, data);
  }
}

TEST(TcpTransportTest, AProcessThatDoesNotReadOwesNoAnswer) {
  const auto [ours, its] = Connection();
  ASSERT_TRUE(PrepareSocket(ours).ok());
  int timeout = 0;
  socklen_t length = sizeof(timeout);
  ASSERT_EQ(getsockopt(ours, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &length), 0);
  EXPECT_EQ(timeout, 0);  // with one, the kernel would end the connection
  const Bytes data(1 << 20);
  tcp_info info{};
  do {  // until a second has passed since the other kernel took something
    while (send(ours, data.data(), data.size(), MSG_NOSIGNAL) > 0) {
    }
    EXPECT_FALSE(IsUnanswered(ours));
    length = sizeof(info);
    ASSERT_EQ(getsockopt(ours, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    pollfd writable{ours, POLLOUT, 0};
    poll(&writable, 1, /*milliseconds=*/100);
  } while (info.tcpi_last_data_sent < 1500);
  EXPECT_FALSE(IsUnanswered(ours));
  close(ours);
  close(its);
}

TEST(TcpTransportTest, OneThatClosesWithoutAGoodbyeIsGone) {
  Node a(0);
  Raw raw(a, 1);
  raw.Close();
  EXPECT_EQ(a.AwaitGone(1), "process 1 is gone: connection closed");
}

TEST(TcpTransportTest, OneThatSendsWhatDoesNotBelongIsCutOffAndTheOthersAreNot) {
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(10);
  a.transport->Post(2, Id(1, 2, 0, 0), All(into), false, a.OnReceived());
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(a.last_error, "process 2 is not connected to process 0");
  Raw garbage(a, 2), oversize(a, 3), size(a, 4), stranger(a, 5), early(a, 6);
  garbage.Send(Bytes(100, std::byte{0x20}));
  EXPECT_EQ(a.AwaitGone(2), "process 2 has been cut off: it sent a frame of the unknown type 0x20202020");
  oversize.Send({FrameType::kMessage, Transport::kMaxMessage + 1, {}});
  EXPECT_EQ(a.AwaitGone(3), "process 3 has been cut off: it sent a message of 1048577 bytes, more than 1048576");
  a.transport->Post(4, Id(1, 4, 0, 0), All(into), false, a.OnReceived());
  size.Send({FrameType::kMessage, 11, Id(1, 4, 0, 0)});
  EXPECT_NE(a.AwaitGone(4).find("with 11 bytes where 10 are expected"), std::string::npos);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  stranger.Send({FrameType::kMessage, 10, Id(1, 1, 0, 0)});
  EXPECT_NE(a.AwaitGone(5).find("which is process 1's to send"), std::string::npos);
  early.Send({FrameType::kMessage, 11, Id(1, 6, 0, 0)}, Bytes(11));
  early.Send({FrameType::kNotice, 0, {}});
  a.AwaitNotices(6, 1);
  a.transport->Post(6, Id(1, 6, 0, 0), All(into), false, a.OnReceived());
  EXPECT_NE(a.AwaitGone(6).find("with 11 bytes where 10 are expected"), std::string::npos);
  a.Await([&] { return a.failed == 3; });
  EXPECT_EQ(into, Bytes(10));

  const Bytes data = Pattern(10, 1);
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(data), b.OnSent());
  b.transport->Flush();
  a.Await([&] { return a.received == 1; });
  EXPECT_EQ(into, data);
}

TEST(TcpTransportTest, AfterCancelNoByteIsStored) {
  Node a(0);
  Raw raw(a, 1);
  const size_t half = Transport::kMaxMessage / 2;
  Bytes into(2 * half);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
  raw.Send({FrameType::kMessage, static_cast<uint32_t>(2 * half), Id(1, 1, 0, 0)}, Pattern(half, 1));
  a.transport->Cancel(Id(1, 1, 0, 0).call);
  const Bytes then = into;
  into = then;  // a race, to a sanitizer, if the memory were still somebody's
  raw.Send(Pattern(half, 2));
  raw.Send({FrameType::kMessage, 10, Id(1, 1, 0, 1)}, Bytes(10, std::byte{1}));
  raw.Send({FrameType::kMessage, 10, Id(1, 1, 0, 2)}, Bytes(10, std::byte{1}));
  a.transport->Post(1, Id(1, 1, 0, 2), All(into), false, a.OnReceived());
  raw.Send({FrameType::kNotice, 0, {}});
  a.AwaitNotices(1, 1);
  EXPECT_EQ(into, then);
  EXPECT_EQ(a.received + a.failed, 0);
}

TEST(TcpTransportTest, AfterCancelNoByteIsSentFromTheCaller) {
  Node a(0);
  Raw raw(a, 1);
  constexpr uint32_t kMessages = 50;  // more than the kernel takes
  Bytes data = Pattern(Transport::kMaxMessage, 1);
  const Bytes original = data;
  for (uint32_t i = 0; i < kMessages; ++i) {
    a.transport->Send({{1, Id(1, 0, 1, i)}}, All(std::as_const(data)), a.OnSent());
  }
  a.transport->Flush();
  a.transport->Cancel(Id(1, 0, 0, 0).call);
  data.assign(data.size(), std::byte{9});
  a.transport->Notify(1, "next");
  a.transport->Flush();
  for (uint32_t i = 0;; ++i) {
    const Result<Header> header = DecodeHeader(raw.Read(kHeaderBytes).data());
    ASSERT_TRUE(header.ok());
    ASSERT_LT(i, kMessages);
    if (header.value().type == FrameType::kNotice) break;
    EXPECT_EQ(header.value().id.index, i);
    EXPECT_TRUE(Same(raw.Read(header.value().bytes), original));
  }
}

// One side of calls that one or both sides give up at any moment; every third call is carried through.
void RunAndCancel(Node& node, uint32_t peer, unsigned seed) {
  constexpr uint32_t kCalls = 60, kMessages = 6;
  std::mt19937 random(seed);
  for (uint32_t call = 0; call < kCalls; ++call) {
    const bool whole = call % 3 == 2;
    std::vector<Bytes> out, in;
    for (uint32_t i = 0; i < kMessages; ++i) {
      out.push_back(Pattern(i % 2 ? 300 : 100000, call + i));
      in.emplace_back(out[i].size());
    }
    struct Ends {  // stays as long as a callback that has begun before the cancel
      std::mutex mutex;
      std::condition_variable changed;
      uint32_t count = 0;
    };
    auto ends = std::make_shared<Ends>();
    const auto end = [ends](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      std::lock_guard<std::mutex> lock(ends->mutex);
      ++ends->count;
      ends->changed.notify_all();
    };
    for (uint32_t i = 0; i < kMessages; ++i) {
      node.transport->Post(peer, Id(call, peer, node.process, i), All(in[i]), false,
                           [end](const Status& status, std::shared_ptr<const std::byte>) { end(status); });
      node.transport->Send({{peer, Id(call, node.process, peer, i)}}, All(std::as_const(out[i])), end);
      if (random() % 3 == 0) node.transport->Flush();
    }
    node.transport->Flush();
    if (whole) {
      std::unique_lock<std::mutex> lock(ends->mutex);
      ends->changed.wait(lock, [&] { return ends->count == 2 * kMessages; });
      for (uint32_t i = 0; i < kMessages; ++i) EXPECT_TRUE(Same(in[i], out[i]));
    } else {
      for (auto rounds = random() % 20; rounds > 0; --rounds) std::this_thread::yield();
      node.transport->Cancel(Id(call, 0, 0, 0).call);  // then the memory is given back
    }
  }
}

TEST(TcpTransportTest, CancelsInTheMidstOfTraffic) {
  Node a(0), b(1);
  Connect(a, b);
  std::thread other([&] { RunAndCancel(b, 0, 2); });
  RunAndCancel(a, 1, 1);
  other.join();
}

TEST(TcpTransportTest, ManyProcesses) {
  constexpr uint32_t kProcesses = 64;
  Node hub(0);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Bytes> into(kProcesses, Bytes(20000));
  for (uint32_t i = 1; i <= kProcesses; ++i) {
    nodes.push_back(std::make_unique<Node>(i));
    Connect(hub, *nodes.back());
    hub.transport->Post(i, Id(1, i, 0, 0), All(into[i - 1]), false, hub.OnReceived());
  }
  const Bytes data = Pattern(20000, 1);
  for (auto& node : nodes) {
    node->transport->Send({{0, Id(1, node->process, 0, 0)}}, All(data), node->OnSent());
    node->transport->Flush();
  }
  hub.Await([&] { return hub.received == kProcesses; });
  for (const Bytes& bytes : into) EXPECT_EQ(bytes, data);
  nodes.clear();
  for (uint32_t i = 1; i <= kProcesses; ++i) EXPECT_EQ(hub.AwaitGone(i), "process " + std::to_string(i) + " has left");
}

TEST(TcpTransportTest, CallbacksMayCallTheTransport) {
  constexpr uint32_t kSteps = 5000;
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(8);
  const Bytes data(8);
  // All of it is early, so each Post could run the next one inside.
  for (uint32_t i = 0; i < kSteps; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Notify(1, "all");
  a.transport->Flush();
  b.AwaitNotices(0, 1);
  std::promise<void> done;
  std::function<void(uint32_t)> post = [&](uint32_t i) {
    if (i == kSteps) return done.set_value();
    b.transport->Post(0, Id(1, 0, 1, i), All(into), false,
                      [&post, i](const Status&, std::shared_ptr<const std::byte>) { post(i + 1); });
  };
  post(0);
  done.get_future().wait();
}

TEST(TcpTransportTest, WhatCannotBeIsAnError) {
  Node a(0), b(1);
  Connect(a, b);
  const auto [one, other] = Connection();
  EXPECT_EQ(a.transport->AddPeer(1, one).message(), "process 1 cannot be connected: it has been connected already");
  EXPECT_EQ(a.transport->AddPeer(0, other).message(), "process 0 cannot be connected: it is this process");
  EXPECT_EQ(a.transport->AddPeer(2, socket(AF_INET, SOCK_STREAM, 0)).message(),
            "process 2 cannot be connected: no connected TCP socket: Transport endpoint is not connected");
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(a.transport->AddPeer(2, pair[0]).message(),
            "process 2 cannot be connected: no connected TCP socket: Operation not supported");
  close(pair[1]);
  Bytes data(Transport::kMaxMessage + 1);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(std::as_const(data)), a.OnSent());
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(
      a.last_error,
      "a message has a span of 1048577 bytes at 0 after one that ends at 0; spans must ascend and end before 1 MiB");
  a.transport->Post(1, Id(1, 1, 0, 0), {{data.data(), 2, 4}, {data.data(), 2, 5}}, false, a.OnReceived());
  a.Await([&] { return a.failed == 2; });
  a.transport->Notify(1, std::string(Transport::kMaxNotice + 1, 'x'));
  EXPECT_EQ(a.AwaitGone(1), "a notice of 4097 bytes to process 1, more than 4096");
}

TEST(TcpTransportTest, WithoutAThreadThereIsNone) {
  const NoThreads none;
  class : public Transport::Events {
    void OnNotice(uint32_t, std::string_view) override {}
    void OnPeerGone(uint32_t, const Status&) override {}
  } events;
  EXPECT_EQ(TcpTransport::Create(0, &events).status().message(),
            "no transport over TCP can be made: the system has no thread to give");
}

}  // namespace
}  // namespace jaxcomm
