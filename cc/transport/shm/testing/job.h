// The transports of several processes of a host, all run within one process, for tests.
//
//   ShmJob job(3);                                  // three transports, connected
//   job[0].Send({{1, id}}, spans, [](const Status&) {});
//   job.events(1).AwaitNotices(0, 1);
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "cc/transport/testing/recorded_events.h"
#include "gtest/gtest.h"

namespace jaxcomm {

// A counter that any thread may increment or await.
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

class ShmJob {
 public:
  explicit ShmJob(uint32_t processes, int64_t arena_bytes = int64_t{16} << 20) {
    std::vector<Transport::Events*> events;
    for (uint32_t process = 0; process < processes; ++process) {
      events_.push_back(std::make_unique<RecordedEvents>(process));
      events.push_back(events_.back().get());
    }
    transports_ = ConnectShm(events, arena_bytes);
    for (const std::unique_ptr<ShmTransport>& transport : transports_) transport->Expect();
  }

  ShmTransport& operator[](uint32_t process) { return *transports_[process]; }
  RecordedEvents& events(uint32_t process) { return *events_[process]; }
  void Leave(uint32_t process) { transports_[process] = nullptr; }

 private:
  std::vector<std::unique_ptr<RecordedEvents>> events_;
  std::vector<std::unique_ptr<ShmTransport>> transports_;
};

// Returns `bytes` bytes that depend on the id, so that different messages have different bytes.
inline std::vector<std::byte> Content(const MessageId& id, size_t bytes) {
  std::vector<std::byte> content(bytes);
  uint64_t word = (uint64_t{id.call.launch} << 32) ^ (uint64_t{id.from} << 16) ^ id.index ^ 0x9e3779b97f4a7c15;
  for (std::byte& byte : content) {
    word = word * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(word >> 56);
  }
  return content;
}

}  // namespace jaxcomm
