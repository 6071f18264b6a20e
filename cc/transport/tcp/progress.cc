// Who serves the connections of TcpTransport: its thread, or one that helps it for a while.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cc/transport/tcp/peer.h"
#include "cc/transport/tcp/tcp_transport.h"

namespace jaxcomm {
namespace {

using Clock = std::chrono::steady_clock;

// How long after the last call the next one may come whose rank takes the messages itself.
constexpr std::chrono::milliseconds kQuiet{1};

}  // namespace

void TcpTransport::Work() {
  Lock lock(mutex_);
  auto next_look = Clock::now() + kLook;
  for (;;) {
    Pause(lock);
    if (stopping_) break;
    server_ = std::this_thread::get_id();
    RunDue(lock);
    if (!stopping_) Await(lock, kLook);
    if (Clock::now() >= next_look) {
      FindSilent(lock);
      next_look = Clock::now() + kLook;
    }
    server_ = std::thread::id();
  }
  server_ = std::this_thread::get_id();
  Depart(lock);
}

// While another thread serves, or soon may: to be woken by what is for that one takes longer than all the rest of a
// small call.
void TcpTransport::Pause(Lock& lock) {
  while (server_ != std::thread::id() || (!MustServe() && Clock::now() < quiet_since_ + kQuiet)) {
    changed_.wait_for(lock, kQuiet);
  }
}

bool TcpTransport::MustServe() const {
  const auto is_blocked = [](const auto& entry) { return entry.second->gone.ok() && entry.second->blocked; };
  return stopping_ || expected_ > 0 || resumes_ || !callbacks_.empty() ||
         std::any_of(peers_.begin(), peers_.end(), is_blocked);
}

void TcpTransport::Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) {
  Lock lock(mutex_);
  if (server_ != std::thread::id() || stopping_) return WriteQueued(lock);
  server_ = std::this_thread::get_id();
  const Clock::time_point end = Clock::now() + limit;
  for (;;) {
    RunDue(lock);
    lock.unlock();
    const bool is_over = over();
    lock.lock();
    WriteQueued(lock);
    const auto left = end - Clock::now();
    if (is_over || left <= left.zero() || stopping_) break;
    if (callbacks_.empty() && !resumes_) Await(lock, std::chrono::ceil<std::chrono::milliseconds>(left));
  }
  server_ = std::thread::id();
  if (MustServe()) changed_.notify_one();
}

void TcpTransport::Expect() {
  Lock lock(mutex_);
  if (++expected_ == 1) changed_.notify_one();
}

void TcpTransport::EndExpecting() {
  Lock lock(mutex_);
  if (--expected_ <= 0) quiet_since_ = Clock::now();
}

void TcpTransport::RunDue(Lock& lock) {
  do {
    if (std::exchange(resumes_, false)) {
      for (const auto& [process, peer] : peers_) {
        if (peer->gone.ok() && peer->reader.waits()) CheckReader(lock, *peer, peer->reader.Resume());
      }
    }
    RunCallbacks(lock);
  } while (resumes_ && !stopping_);  // a callback may have posted what a reader waits for
}

void TcpTransport::Await(Lock& lock, std::chrono::milliseconds limit) {
  epoll_event events[64];
  lock.unlock();
  const int count = epoll_wait(epoll_, events, 64, static_cast<int>(limit.count()));
  lock.lock();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWake) {
      uint64_t ignored;
      has_woken_ = read(wake_, &ignored, sizeof(ignored)) < 0;
      continue;
    }
    Peer& peer = *peers_.at(static_cast<uint32_t>(events[i].data.u64));
    if (events[i].events & EPOLLOUT) {
      peer.blocked = false;
      Write(lock, peer);
      SetInterest(peer);
    }
    if (events[i].events & ~EPOLLOUT) Read(lock, peer);
  }
}

void TcpTransport::RunCallbacks(Lock& lock) {
  while (!callbacks_.empty() && !stopping_) {
    std::function<void()> run = callbacks_.Begin();
    lock.unlock();
    run();
    run = nullptr;  // what it holds may be released by calling us
    lock.lock();
    callbacks_.End();
  }
}

// So that whoever serves sees what has changed.
void TcpTransport::Wake() {
  if (server_ == std::thread::id()) return changed_.notify_one();
  if (has_woken_ || std::this_thread::get_id() == server_) return;
  const uint64_t one = 1;
  has_woken_ = write(wake_, &one, sizeof(one)) == sizeof(one);
}

}  // namespace jaxcomm
