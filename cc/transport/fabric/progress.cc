// Polls libfabric and the connections of FabricTransport, and ends all paths.
#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "cc/transport/fabric/peer.h"

namespace jaxcomm {
namespace {

constexpr int kEvents = 64;
constexpr std::chrono::seconds kDeparture(2);
// The longest sleeps: kBusySleep while frames are under way, kIdleSleep otherwise. Many providers make progress only
// when they are polled.
constexpr std::chrono::milliseconds kBusySleep(5), kIdleSleep(50);
// A provider may refuse frames until it has connected to a process. After this number of refusals the thread sleeps
// between two polls.
constexpr int kEagerRefusals = 100;
// Pauses after the descriptor has reported a completion but there was none: kShortPause while frames are under way,
// kLongPause otherwise.
constexpr std::chrono::microseconds kShortPause(10), kLongPause(200);

// Returns the pause before the next poll of a provider without a descriptor. The pause grows with `polls`, the number
// of polls so far.
std::chrono::microseconds PauseAfter(int polls) {
  return std::chrono::microseconds(polls < 100 ? 10 : polls < 200 ? 100 : 1000);
}

}  // namespace

void FabricTransport::Resume(Lock& lock) {
  for (const auto& [process, peer] : peers_) {
    std::deque<Slot*> waiting;
    waiting.swap(peer->waiting);
    for (Slot* const slot : waiting) {
      if (!peer->gone.ok()) {
        Receive(slot);
      } else if (const Status status = TakeFrame(*peer, slot); !status.ok()) {
        Fail(lock, *peer, CutOff(process, status));
      }
    }
  }
}

bool FabricTransport::HasMore() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    const Peer& peer = *entry.second;
    return peer.gone.ok() && (peer.has_frames() || peer.owes_report());
  });
}

// Posts the receives that libfabric has refused, and receives into the slots of views that have ended.
void FabricTransport::ReceiveAgain() {
  std::vector<Slot*> slots;
  slots.swap(to_receive_);
  for (Slot* const slot : slots) Receive(slot);
  for (Slot* const slot : arena_->Released()) {
    Peer* const peer = PathOf(*slot);
    peer != nullptr ? Free(*peer, slot) : Receive(slot);
  }
}

// Sends all that may be sent now.
void FabricTransport::Progress(Lock& lock) {
  ReceiveAgain();
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    Write(lock, *peer);
    Report(lock, *peer);
  }
}

// Handles the operations that have ended. Returns whether there were any.
bool FabricTransport::Drain(Lock& lock) {
  const std::vector<Endpoint::Completion> completed = endpoint_->Completed();
  for (const Endpoint::Completion& each : completed) {
    Slot* const slot = static_cast<Slot*>(each.context);
    if (slot->sends) {
      EndSend(lock, slot, each.error);
    } else if (each.error != 0) {
      Receive(slot);
    } else {
      Take(lock, slot, each.bytes);
    }
  }
  return !completed.empty();
}

std::chrono::nanoseconds FabricTransport::SleepLimit() const {
  if (is_refused_) return std::chrono::milliseconds(refusals_ < kEagerRefusals ? 0 : 1);
  if (HasMore()) return kBusySleep;
  return endpoint_->descriptor() >= 0 ? kIdleSleep : std::chrono::nanoseconds::max();
}

void FabricTransport::Await(Lock& lock, std::chrono::nanoseconds limit) {
  epoll_event events[kEvents];
  is_refused_ = false;
  Progress(lock);
  refusals_ = is_refused_ ? refusals_ + 1 : 0;
  const bool has_work = Drain(lock) || (!callbacks_.empty() && !stopping_);
  const int count = Sleep(lock, has_work ? limit.zero() : std::min(limit, SleepLimit()), events);
  bool is_reported = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key == kWake) Rearm();
    is_reported = is_reported || key == kCompleted;
    if (key == kWake || key == kCompleted || key == kReleased) continue;
    Peer& peer = *peers_.at(static_cast<uint32_t>(key));
    if (peer.gone.ok()) ReadConnection(lock, peer);
  }
  woke_in_vain_ = !Drain(lock) && is_reported;
  Progress(lock);
}

// Polls libfabric, because the descriptors of some providers are readable only after a poll.
bool FabricTransport::HasEvent() {
  Lock lock(mutex_);
  return Drain(lock) || SocketTransport::HasEvent();
}

// Waits for events of the descriptors or for completions. Returns the number of events.
int FabricTransport::Sleep(Lock& lock, std::chrono::nanoseconds limit, epoll_event* events) {
  if (endpoint_->descriptor() >= 0) {
    if (!endpoint_->MaySleep()) limit = limit.zero();
    const bool is_busy = HasMore();
    lock.unlock();
    // The descriptors of some providers are readable all the time. Without a pause, this thread would keep the lock.
    if (woke_in_vain_) std::this_thread::sleep_for(is_busy ? kShortPause : kLongPause);
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
    const int count = epoll_wait(epoll_, events, kEvents, static_cast<int>(milliseconds));
    lock.lock();
    return count;
  }
  const auto end = Clock::now() + limit;
  for (int polls = 0;; ++polls) {
    lock.unlock();
    if (polls > 0) std::this_thread::sleep_for(PauseAfter(polls));
    const int count = epoll_wait(epoll_, events, kEvents, 0);
    lock.lock();
    if (count > 0 || Drain(lock) || Clock::now() >= end) return count;
  }
}

// Waits until the other processes have freed the slots of all frames. Then sends the goodbyes and waits again. A
// process that receives a goodbye ends the path. Both waits together take at most kDeparture.
void FabricTransport::Depart(Lock& lock) {
  const auto deadline = Clock::now() + kDeparture;
  for (const bool says_goodbye : {false, true}) {
    for (const auto& [process, peer] : peers_) {
      if (says_goodbye && peer->gone.ok()) peer->PushCopy({FrameType::kGoodbye, 0, MessageId()}, {}, /*priority=*/0);
    }
    do Await(lock, kBusySleep);
    while (HasMore() && Clock::now() < deadline);
  }
}

}  // namespace jaxcomm
