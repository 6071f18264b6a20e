// Processes of a host, in one process or forked, for tests.
//
//   ShmJob job(3);                                  // three transports, connected
//   job[0].Send({{1, id}}, spans, [](const Status&) {});
//   EXPECT_TRUE(job.events(1).Await([&](const Log& log) { return log.notices.size() == 1; }));
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "gtest/gtest.h"

namespace jaxcomm {

constexpr std::chrono::seconds kTestLimit(60);  // a wait that ends by it has failed

// Counts what has happened, on any thread.
class Counter {
 public:
  void Add() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  bool Await(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kTestLimit, [&] { return count_ >= count; });
  }
  size_t count() {
    std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t count_ = 0;
};

struct Log {
  std::vector<std::pair<uint32_t, std::string>> notices;
  std::map<uint32_t, std::string> gone;
  std::set<uint32_t> left;  // those of them that have left
};

class LoggedEvents : public Transport::Events {
 public:
  void OnNotice(uint32_t process, std::string_view notice) override {
    std::lock_guard<std::mutex> lock(mutex_);
    log_.notices.emplace_back(process, notice);
    changed_.notify_all();
  }
  void OnPeerGone(uint32_t process, const Status& why) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_TRUE(log_.gone.emplace(process, why.message()).second) << "process " << process << " is gone twice";
    changed_.notify_all();
  }
  void OnPeerLeft(uint32_t process, const Status& why) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      log_.left.insert(process);
    }
    OnPeerGone(process, why);
  }
  bool Await(const std::function<bool(const Log&)>& come) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kTestLimit, [&] { return come(log_); });
  }
  Log log() {
    std::lock_guard<std::mutex> lock(mutex_);
    return log_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Log log_;
};

class ShmJob {
 public:
  explicit ShmJob(uint32_t processes, int64_t arena_bytes = int64_t{16} << 20) {
    std::vector<Transport::Events*> events;
    for (uint32_t process = 0; process < processes; ++process) {
      events_.push_back(std::make_unique<LoggedEvents>());
      events.push_back(events_.back().get());
    }
    transports_ = ConnectShm(events, arena_bytes);
    for (const std::unique_ptr<ShmTransport>& transport : transports_) transport->Expect();
  }

  ShmTransport& operator[](uint32_t process) { return *transports_[process]; }
  LoggedEvents& events(uint32_t process) { return *events_[process]; }
  void Leave(uint32_t process) { transports_[process] = nullptr; }

 private:
  std::vector<std::unique_ptr<LoggedEvents>> events_;
  std::vector<std::unique_ptr<ShmTransport>> transports_;
};

// The index-th message of a call, from one rank to another.
inline MessageId Id(uint32_t call, uint32_t from, uint32_t to, uint32_t index = 0) {
  return {CallId{7, call, 0, 0}, from, to, index, 0};
}

// Bytes that no other message has.
inline std::vector<std::byte> Content(const MessageId& id, size_t bytes) {
  std::vector<std::byte> content(bytes);
  uint64_t word = (uint64_t{id.call.launch} << 32) ^ (uint64_t{id.from} << 16) ^ id.index ^ 0x9e3779b97f4a7c15;
  for (std::byte& byte : content) {
    word = word * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(word >> 56);
  }
  return content;
}

inline std::vector<Span> Whole(std::vector<std::byte>& bytes) {
  return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}};
}
inline std::vector<ConstSpan> WholeConst(const std::vector<std::byte>& bytes) {
  return {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}};
}

}  // namespace jaxcomm
