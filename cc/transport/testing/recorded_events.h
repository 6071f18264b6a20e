// Records the events of a process in a test. The test may use any kind of transport.
//
//   class Node : public RecordedEvents { ... };   // owns a transport that reports its events to this node
//   node.transport->Post(1, Id(1, 1, 0, 0), All(into), false, node.OnReceived());
//   node.Await([&] { return node.received == 1; });
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/rail_transport.h"
#include "cc/transport/transport.h"
#include "gtest/gtest.h"

namespace jaxcomm {

using Bytes = std::vector<std::byte>;

constexpr std::chrono::seconds kTestLimit(60);  // a longer wait fails the test

// Returns the id of the message with this index that rank `from` sends to rank `to` in a call.
inline MessageId Id(uint32_t call, uint32_t from, uint32_t to, uint32_t index = 0) {
  return {{1, call, 0, 0}, from, to, index, 0};
}

inline Bytes Pattern(size_t size, size_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i + i / 251);
  return bytes;
}

// Compares with memcmp, because == compares element by element, which is slow under sanitizers.
inline bool Same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline std::vector<Span> All(Bytes& bytes) { return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}}; }
inline std::vector<ConstSpan> All(const Bytes& bytes) {
  return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}};
}

class RecordedEvents : public Transport::Events {
 public:
  explicit RecordedEvents(uint32_t process) : process(process) {}

  void OnNotice(uint32_t from, std::string_view notice) override {
    Record([&] { notices_[from].emplace_back(notice); });
  }
  void OnPeerGone(uint32_t from, const Status& why) override {
    Record([&] { EXPECT_TRUE(gone_.emplace(from, why.message()).second) << "gone twice"; });
  }
  void OnPeerLeft(uint32_t from, const Status& why) override {
    Record([&] { left_.insert(from); });
    OnPeerGone(from, why);
  }
  RailTransport::Early OnEarly() {
    return [this](uint32_t, const MessageId&, int64_t bytes) { Record([&] { early.push_back(bytes); }); };
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
    EXPECT_TRUE(changed_.wait_for(lock, kTestLimit, condition)) << "process " << process << " waits in vain";
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

  std::map<uint32_t, std::string> gone() {
    std::lock_guard<std::mutex> lock(mutex_);
    return gone_;
  }
  std::set<uint32_t> left() {
    std::lock_guard<std::mutex> lock(mutex_);
    return left_;
  }

  const uint32_t process;
  int received = 0, sent = 0, failed = 0;
  std::vector<int64_t> early;  // number of bytes in each early message
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
  std::set<uint32_t> left_;
};

}  // namespace jaxcomm
