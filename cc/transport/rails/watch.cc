// The states of rails, and the thread that looks for silent rails while messages are in flight.
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/thread.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"

namespace jaxcomm {

Status Rails::Start() {
  std::optional<std::thread> thread = StartThread([this] { Watch(); });
  if (!thread) return Status(Code::kInternal, "no rails can be made: no thread can be started");
  watch_ = std::move(*thread);
  return Status();
}

void Rails::Stop() {
  {
    std::lock_guard<std::mutex> lock(watch_mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (watch_.joinable()) watch_.join();
}

void Rails::Watch() {
  std::unique_lock<std::mutex> lock(watch_mutex_);
  while (!stopping_) {
    wake_.wait(lock, [this] { return stopping_ || watching_.load(); });
    while (!stopping_ && watching_.load()) {
      wake_.wait_for(lock, SilentRails::kLook);
      watching_ = false;  // cleared before Look, so that a message sent during Look causes another look
      lock.unlock();
      const bool is_quiet = Look(std::chrono::steady_clock::now());
      lock.lock();
      if (!is_quiet) watching_ = true;
    }
  }
}

// Makes the thread look for silent rails, because a message or notice is in flight.
void Rails::Wake() {
  if (watching_.load()) return;
  {
    std::lock_guard<std::mutex> lock(watch_mutex_);
    watching_ = true;
  }
  wake_.notify_one();
}

// Makes Look send kAsk to all processes over the rail, because other processes may have lost the rail, too.
void Rails::Suspect(uint32_t rail) {
  suspects_ |= uint64_t{1} << rail;
  Wake();
}

// Sends a notice, which the host acknowledges even if the process is busy.
void Rails::Ask(uint32_t process, uint32_t rail) {
  rails_[rail]->Notify(process, std::string(1, kAsk));
  rails_[rail]->Flush();
}

bool Rails::Look(std::chrono::steady_clock::time_point now) {
  bool is_quiet = true;
  const uint64_t suspects = suspects_.exchange(0);
  for (uint32_t process = 0; process < peers_.size(); ++process) {
    std::vector<std::optional<SendProgress>> rails(rails_.size());
    Lock lock(mutex_);
    Peer* const peer = peers_[process].get();
    if (peer == nullptr || !peer->is_open()) continue;
    for (size_t rail = 0; rail < rails.size(); ++rail) {
      if (peer->rails[rail].state == Peer::Rail::State::kOpen) rails[rail].emplace();
    }
    lock.unlock();
    for (uint32_t rail = 0; rail < rails.size(); ++rail) {
      if (rails[rail] && (suspects >> rail & 1) != 0) Ask(process, rail);
      if (rails[rail]) rails[rail] = rails_[rail]->ProgressTo(process);
    }
    lock.lock();
    const SilentRails::Found found = peer->silence.Look(rails, now);
    lock.unlock();
    is_quiet = is_quiet && found.is_quiet;
    for (const uint32_t rail : found.ask) Ask(process, rail);
    for (const uint32_t rail : found.silent) {
      End(process, rail,
          Status(Code::kInternal, "process " + std::to_string(process) + " is gone: a rail to it is silent"),
          /*left=*/false);
    }
  }
  return is_quiet;
}

std::vector<Rails::State> Rails::states() const {
  std::vector<State> states;
  Lock lock(mutex_);
  for (uint32_t process = 0; process < peers_.size(); ++process) {
    for (uint32_t rail = 0; peers_[process] && rail < listeners_.size(); ++rail) {
      const Peer::Rail& used = peers_[process]->rails[rail];
      if (used.state == Peer::Rail::State::kNone) continue;
      const bool is_open = used.state == Peer::Rail::State::kOpen, has_left = used.state == Peer::Rail::State::kLeft;
      State state{process, rail, used.fences, is_open, has_left, used.bytes, {}, used.history};
      for (const RailTable::Range& range : peers_[process]->shares) {
        state.shares.emplace_back(range.min_bytes, range.shares[rail]);
      }
      states.push_back(std::move(state));
    }
  }
  return states;
}

}  // namespace jaxcomm
