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
    return peer.gone.ok() && (peer.blocked || peer.queue.has_next());
  };
  return std::any_of(peers_.begin(), peers_.end(), has_more);
}

void UdpTransport::Resume(Lock&) {
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok() || !peer->waits()) continue;
    peer->assembler.Resume();
    Answer(*peer);
  }
}

// Does the work that is due, and sets the time until which the thread may sleep.
void UdpTransport::RunTimers(Lock& lock) {
  const int64_t now = NowNanoseconds();
  next_batch_ = std::numeric_limits<int64_t>::max();
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    if (const auto bound = peer->assembler.NextBound()) {
      const int64_t at = Nanoseconds(*bound);
      if (at <= now) peer->assembler.Expire(*bound);
      if (peer->assembler.owes_answer_now()) Answer(*peer);
      sleeps_until_ = std::min(sleeps_until_, at);
    }
    if (peer->answer_at != 0) {
      if (peer->answer_at <= now) Answer(*peer);
      if (peer->answer_at != 0) sleeps_until_ = std::min(sleeps_until_, peer->answer_at);
    }
    if (peer->queue.has_next() && !peer->blocked && !peer->writing) {  // a writing thread wakes this one when done
      Write(lock, *peer);
      if (peer->queue.has_next()) {
        const int64_t next = std::max(peer->rate.NextAt(), peer->held_until);
        sleeps_until_ = std::min(sleeps_until_, next);
        next_batch_ = std::min(next_batch_, next);
      }
    }
    if (peer->gone.ok() && !peer->writing && peer->queue.is_under_way()) {
      if (peer->answered + peer->AnswerTimeout() <= NowNanoseconds()) {
        ++peer->unanswered;
        peer->answered = NowNanoseconds();
        Probe(*peer);
        if (peer->unanswered >= kUnansweredProbes) AskProcess(*peer);
      }
      sleeps_until_ = std::min(sleeps_until_, peer->answered + peer->AnswerTimeout());
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
