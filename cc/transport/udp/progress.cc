// Handles the arrivals, the timers and the departure of UdpTransport.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "cc/transport/udp/peer.h"
#include "cc/transport/udp/udp_transport.h"

namespace jaxcomm {
namespace {

constexpr std::chrono::seconds kDeparture{2};
// Number of unanswered probes in a row after which a process is asked over TCP. These probes take at least 1/8 s.
constexpr int kUnansweredProbes = 6;

}  // namespace

void UdpTransport::Work() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds; the minimum, because this thread's timers pace the packets
  SocketTransport::Work();
}

void UdpTransport::OnPause(std::chrono::nanoseconds limit) { sleeps_until_ = NowNanoseconds() + limit.count(); }

bool UdpTransport::HasMore() const {
  const auto has_more = [](const auto& entry) {
    const Peer& peer = *entry.second;
    const auto is_blocked = [](const Path& path) { return path.blocked; };
    return peer.gone.ok() && (peer.queue.has_next() || std::any_of(peer.paths.begin(), peer.paths.end(), is_blocked));
  };
  return std::any_of(peers_.begin(), peers_.end(), has_more);
}

void UdpTransport::Resume(Lock&) {
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok() || !peer->waits()) continue;
    Answer(*peer, peer->assembler.Resume());
  }
}

// Does the work that is due, and sets the time until which the thread may sleep.
void UdpTransport::RunTimers(Lock& lock) {
  const int64_t now = NowNanoseconds();
  next_batch_ = std::numeric_limits<int64_t>::max();
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    if (const auto limit = peer->assembler.NextTimeLimit()) {
      const int64_t at = Nanoseconds(*limit);
      if (at <= now) peer->assembler.Expire(*limit);
      sleeps_until_ = std::min(sleeps_until_, at);
    }
    for (size_t i = 0; i < peer->paths.size(); ++i) {
      if (peer->assembler.owes_answer_now(i)) Answer(*peer, i);
      const int64_t& answer_at = peer->paths[i].answer_at;
      if (answer_at != 0 && answer_at <= now) Answer(*peer, i);
      if (answer_at != 0) sleeps_until_ = std::min(sleeps_until_, answer_at);
    }
    if (peer->queue.has_next() && !peer->writing) {  // a writing thread wakes this one when done
      Write(lock, *peer);
      const int64_t next = peer->NextBatchAt(NowNanoseconds());
      sleeps_until_ = std::min(sleeps_until_, next);
      next_batch_ = std::min(next_batch_, next);
    }
    if (!peer->gone.ok() || peer->writing) continue;
    for (size_t i = 0; i < peer->paths.size(); ++i) {
      Path& path = peer->paths[i];
      if (!peer->queue.is_under_way(i) || path.answered + path.AnswerTimeout() > NowNanoseconds()) continue;
      TakeTimeout(*peer, i);
      if (path.unanswered >= kUnansweredProbes && !path.is_silent) AskProcess(*peer);
    }
    sleeps_until_ = std::min(sleeps_until_, peer->NextTimeout());
  }
}

void UdpTransport::Await(Lock& lock, std::chrono::nanoseconds limit) {
  epoll_event events[64];
  sleeps_until_ = NowNanoseconds() + limit.count();
  RunTimers(lock);
  if (!callbacks_.empty() && !stopping_) return;
  const int64_t nanoseconds = std::max<int64_t>(0, sleeps_until_ - NowNanoseconds());
  lock.unlock();
  // Uses ppoll, because epoll_wait counts in milliseconds.
  pollfd ready{epoll_, POLLIN, 0};
  const timespec timeout{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
  // Packets that arrive shortly before the next batch are read when the batch is due, because a wake-up costs the CPU
  // time of ten packets.
  const bool is_paced = next_batch_ <= sleeps_until_ && nanoseconds <= RateControl::kBatchTime;
  if (is_paced) nanosleep(&timeout, nullptr);
  const bool has_come = is_paced || ppoll(&ready, 1, &timeout, nullptr) > 0;
  const int count = has_come ? epoll_wait(epoll_, events, 64, 0) : 0;
  lock.lock();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWake) {
      Rearm();
      continue;
    }
    Peer& peer = *peers_.at(static_cast<uint32_t>(events[i].data.u64 >> 8));
    if (!peer.gone.ok()) continue;
    const size_t number = events[i].data.u64 & kConnection;
    if (number == kConnection) {
      ReadConnection(lock, peer);
      continue;
    }
    if (number >= peer.paths.size()) continue;
    if (events[i].events & EPOLLOUT) {
      peer.paths[number].blocked = false;
      Write(lock, peer);
      SetInterest(peer, number);
    }
    if (events[i].events & ~EPOLLOUT) Read(lock, peer, number);
  }
}

// Waits until the other processes have acknowledged all queued messages. Then sends the goodbyes, and waits until the
// goodbyes are acknowledged. Both waits together take at most kDeparture.
void UdpTransport::Depart(Lock& lock) {
  const auto deadline = Clock::now() + kDeparture;
  const auto is_done = [](const auto& entry) { return !entry.second->gone.ok() || entry.second->queue.empty(); };
  for (const bool says_goodbye : {false, true}) {
    for (const auto& [process, peer] : peers_) {
      if (!says_goodbye || !peer->gone.ok()) continue;
      peer->queue.PushCopy({FrameType::kGoodbye, 0, MessageId()}, {});
      Write(lock, *peer);  // each goodbye is written once, even after the deadline
    }
    while (!std::all_of(peers_.begin(), peers_.end(), is_done) && Clock::now() < deadline) {
      Await(lock, deadline - Clock::now());
    }
  }
}

}  // namespace jaxcomm
