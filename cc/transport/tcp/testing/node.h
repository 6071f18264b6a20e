// Processes that tests connect by TCP within one, and what they hear of each other.
//
//   Node a(0), b(1);
//   Connect(a, b);
//   a.transport->Notify(1, "here");
//   EXPECT_EQ(b.AwaitNotices(0, 1)[0], "here");
//   Raw raw(a, 2);                    // the test itself is process 2, and sends a what it likes
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/tcp/tcp_transport.h"
#include "cc/transport/transport.h"
#include "gtest/gtest.h"

namespace jaxcomm {

using Bytes = std::vector<std::byte>;

inline MessageId Id(uint32_t call, uint32_t from, uint32_t to, uint32_t index) {
  return {{1, call, 0, 0}, from, to, index, 0};
}

inline Bytes Pattern(size_t size, size_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i + i / 251);
  return bytes;
}

// Element by element, which == does, takes long under sanitizers.
inline bool Same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline std::vector<Span> All(Bytes& bytes) { return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}}; }
inline std::vector<ConstSpan> All(const Bytes& bytes) {
  return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}};
}

inline std::pair<int, int> Connection() {
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

inline void Connect(Node& a, Node& b) {
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

}  // namespace jaxcomm
