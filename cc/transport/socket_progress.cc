// Polls the sockets of SocketTransport and runs its callbacks, on the progress thread or on a thread in Help.
#include <poll.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "cc/base/finally.h"
#include "cc/transport/socket_transport.h"

namespace jaxcomm {
namespace {

// The progress thread pauses for this time after the last expected call, because a thread that waits for the next call
// may receive the messages of that call itself.
constexpr std::chrono::milliseconds kQuiet{1};
constexpr int kLooks = 10;  // number of checks of each host within `silence`

}  // namespace

void SocketTransport::Work() {
  Lock lock(mutex_);
  for (;;) {
    Pause(lock);
    if (stopping_) break;
    server_ = std::this_thread::get_id();
    RunDue(lock);
    if (!stopping_) Await(lock, silence_ / kLooks);
    server_ = std::thread::id();
  }
  server_ = std::this_thread::get_id();
  Depart(lock);
}

// Waits while another thread polls the sockets or may soon poll them. If this thread polled, too, one message would
// wake both threads. Waking both takes longer than the rest of a small call.
void SocketTransport::Pause(Lock& lock) {
  while (server_ != std::thread::id() || (!MustServe() && Clock::now() < quiet_since_ + kQuiet)) {
    if (server_ == std::thread::id()) OnPause(kQuiet);
    changed_.wait_for(lock, kQuiet);
  }
}

bool SocketTransport::MustServe() const {
  return stopping_ || expected_ > 0 || resumes_ || !callbacks_.empty() || HasMore();
}

void SocketTransport::Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) {
  Lock lock(mutex_);
  if (server_ != std::thread::id() || stopping_) return WriteQueued(lock);
  server_ = std::this_thread::get_id();
  const Finally leave([&] {
    if (!lock.owns_lock()) lock.lock();
    server_ = std::thread::id();
    if (MustServe()) changed_.notify_one();
  });
  const Clock::time_point end = Clock::now() + limit;
  for (;;) {
    RunDue(lock);
    lock.unlock();
    const bool is_over = over();
    lock.lock();
    WriteQueued(lock);
    const auto left = end - Clock::now();
    if (is_over || left <= left.zero() || stopping_) break;
    if (!callbacks_.empty() || resumes_) continue;
    if (yields) {
      lock.unlock();
      YieldUntil([this] { return HasEvent(); }, rests_until_);
      lock.lock();
    }
    Await(lock, left);
  }
}

bool SocketTransport::HasEvent() {
  pollfd sockets{epoll_, POLLIN, 0};
  return poll(&sockets, 1, 0) > 0;
}

void SocketTransport::Expect() {
  Lock lock(mutex_);
  if (++expected_ == 1) changed_.notify_one();
}

void SocketTransport::EndExpecting() {
  Lock lock(mutex_);
  if (--expected_ <= 0) quiet_since_ = Clock::now();
}

// Counts the checks in which a host was silent, not the elapsed time, because this process may have been stopped for
// some of that time.
void SocketTransport::FindSilent(Lock& lock) {
  const auto now = Clock::now();
  const auto since = now - looked_;
  if (since < silence_ / kLooks) return;
  looked_ = now;
  for (SocketPeer* const peer : Peers()) {
    if (!peer->gone.ok()) continue;
    const std::optional<std::string> why = WhySilent(*peer, since);
    peer->silent_looks = why ? peer->silent_looks + 1 : 0;
    if (peer->silent_looks > kLooks) Fail(lock, *peer, Gone(peer->process, *why));
  }
}

void SocketTransport::RunDue(Lock& lock) {
  FindSilent(lock);
  do {
    if (std::exchange(resumes_, false)) Resume(lock);
    RunCallbacks(lock);
  } while (resumes_ && !stopping_);  // a callback may have posted a message, so that peers can be read again
}

void SocketTransport::RunCallbacks(Lock& lock) {
  while (!callbacks_.empty() && !stopping_) {
    std::function<void()> run = callbacks_.Begin();
    lock.unlock();
    const Finally end([&] {
      run = nullptr;  // without the lock: destructors of objects that the callback owns may call the transport
      lock.lock();
      callbacks_.End();
    });
    run();
  }
}

void SocketTransport::Wake() {
  if (server_ == std::thread::id()) return changed_.notify_one();
  if (has_woken_ || std::this_thread::get_id() == server_) return;
  const uint64_t one = 1;
  has_woken_ = write(wake_, &one, sizeof(one)) == sizeof(one);
}

void SocketTransport::Rearm() {
  uint64_t ignored;
  has_woken_ = read(wake_, &ignored, sizeof(ignored)) < 0;
}

}  // namespace jaxcomm
