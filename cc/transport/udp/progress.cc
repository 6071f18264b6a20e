// Who serves the paths of UdpTransport: its thread, or one that helps it for a while.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cc/transport/udp/peer.h"
#include "cc/transport/udp/udp_transport.h"

namespace jaxcomm {
namespace {

using Clock = std::chrono::steady_clock;

// How long after the last call the next one may come whose rank takes the messages itself.
constexpr std::chrono::milliseconds kQuiet{1};
constexpr std::chrono::seconds kSleep{1};
constexpr std::chrono::seconds kDeparture{2};

}  // namespace

void UdpTransport::Work() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds: packets are paced by this thread's timers
  Lock lock(mutex_);
  for (;;) {
    Pause(lock);
    if (stopping_) break;
    server_ = std::this_thread::get_id();
    RunDue(lock);
    if (!stopping_) Await(lock, kSleep);
    server_ = std::thread::id();
  }
  server_ = std::this_thread::get_id();
  Depart(lock);
}

// While another thread serves, or soon may: to be woken by what is for that one takes longer than all the rest of a
// small call.
void UdpTransport::Pause(Lock& lock) {
  while (server_ != std::thread::id() || (!MustServe() && Clock::now() < quiet_since_ + kQuiet)) {
    if (server_ == std::thread::id()) sleeps_until_ = NowNanoseconds() + std::chrono::nanoseconds(kQuiet).count();
    changed_.wait_for(lock, kQuiet);
  }
}

bool UdpTransport::MustServe() const {
  const auto has_more = [](const auto& entry) {
    const Peer& peer = *entry.second;
    return peer.gone.ok() && (peer.blocked || peer.queue.has_next());
  };
  return stopping_ || expected_ > 0 || resumes_ || !callbacks_.empty() ||
         std::any_of(peers_.begin(), peers_.end(), has_more);
}

void UdpTransport::Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) {
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
    if (callbacks_.empty() && !resumes_) Await(lock, left);
  }
  server_ = std::thread::id();
  if (MustServe()) changed_.notify_one();
}

void UdpTransport::Expect() {
  Lock lock(mutex_);
  if (++expected_ == 1) changed_.notify_one();
}

void UdpTransport::EndExpecting() {
  Lock lock(mutex_);
  if (--expected_ <= 0) quiet_since_ = Clock::now();
}

void UdpTransport::RunDue(Lock& lock) {
  do {
    if (std::exchange(resumes_, false)) {
      for (const auto& [process, peer] : peers_) {
        if (!peer->gone.ok() || !peer->assembler.waits()) continue;
        peer->assembler.Resume();
        Answer(*peer);
      }
    }
    RunCallbacks(lock);
  } while (resumes_ && !stopping_);  // a callback may have posted what a process waits for
}

// What is due by now; the rest says how long there is to sleep.
void UdpTransport::RunTimers(Lock& lock) {
  const int64_t now = NowNanoseconds();
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    if (peer->answer_at != 0) {
      if (peer->answer_at <= now) {
        Answer(*peer);
      } else {
        sleeps_until_ = std::min(sleeps_until_, peer->answer_at);
      }
    }
    if (peer->queue.has_next() && !peer->blocked) {
      Write(lock, *peer);
      if (peer->queue.has_next()) {
        sleeps_until_ = std::min(sleeps_until_, std::max(peer->rate.NextAt(), peer->held_until));
      }
    }
    if (peer->gone.ok() && !peer->writing && peer->queue.is_under_way()) {
      if (peer->heard + peer->AnswerTimeout() <= NowNanoseconds()) Probe(*peer);
      sleeps_until_ = std::min(sleeps_until_, peer->heard + peer->AnswerTimeout());
    }
  }
}

void UdpTransport::Await(Lock& lock, std::chrono::nanoseconds limit) {
  epoll_event events[64];
  sleeps_until_ = NowNanoseconds() + limit.count();
  RunTimers(lock);
  if (!callbacks_.empty() && !stopping_) return;
  const int64_t nanoseconds = std::max<int64_t>(0, sleeps_until_ - NowNanoseconds());
  lock.unlock();
  // epoll_wait counts in milliseconds.
  pollfd ready{epoll_, POLLIN, 0};
  const timespec timeout{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
  const int count = ppoll(&ready, 1, &timeout, nullptr) > 0 ? epoll_wait(epoll_, events, 64, 0) : 0;
  lock.lock();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWake) {
      uint64_t ignored;
      has_woken_ = read(wake_, &ignored, sizeof(ignored)) < 0;
      continue;
    }
    Peer& peer = *peers_.at(static_cast<uint32_t>(events[i].data.u64 >> 1));
    if (!peer.gone.ok()) continue;
    if (events[i].data.u64 == KeyOf(peer.process, /*is_connection=*/true)) {
      ReadConnection(lock, peer);
      continue;
    }
    if (events[i].events & EPOLLOUT) {
      peer.blocked = false;
      Write(lock, peer);
      SetInterest(peer);
    }
    if (events[i].events & ~EPOLLOUT) Read(lock, peer);
  }
}

void UdpTransport::RunCallbacks(Lock& lock) {
  while (!callbacks_.empty() && !stopping_) {
    std::function<void()> run = callbacks_.Begin();
    lock.unlock();
    run();
    run = nullptr;  // what it holds may be released by calling us
    lock.lock();
    callbacks_.End();
  }
}

// Waits until the others have what is queued, and then the goodbye.
void UdpTransport::Depart(Lock& lock) {
  const auto deadline = Clock::now() + kDeparture;
  const auto is_done = [](const auto& entry) { return !entry.second->gone.ok() || entry.second->queue.empty(); };
  for (const bool says_goodbye : {false, true}) {
    for (const auto& [process, peer] : peers_) {
      if (!says_goodbye || !peer->gone.ok()) continue;
      peer->queue.PushCopy({FrameType::kGoodbye, 0, MessageId()}, {});
      Write(lock, *peer);  // once, however late it is
    }
    while (!std::all_of(peers_.begin(), peers_.end(), is_done) && Clock::now() < deadline) {
      Await(lock, deadline - Clock::now());
    }
  }
}

// So that whoever serves sees what has changed.
void UdpTransport::Wake() {
  if (server_ == std::thread::id()) return changed_.notify_one();
  if (has_woken_ || std::this_thread::get_id() == server_) return;
  const uint64_t one = 1;
  has_woken_ = write(wake_, &one, sizeof(one)) == sizeof(one);
}

}  // namespace jaxcomm
