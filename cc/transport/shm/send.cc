#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "cc/base/text.h"
#include "cc/transport/shm/doorbell.h"
#include "cc/transport/shm/peer.h"
#include "cc/transport/shm/shm_transport.h"

namespace jaxcomm {
namespace {

shm::Record MakeRecord(shm::Record::Kind kind, const MessageId& id, const Extent& extent) {
  shm::Record record;
  record.kind = kind;
  record.id = id;
  record.at = extent.at;
  record.extent = extent.bytes;
  record.carried = extent.carried;
  return record;
}

std::vector<uint32_t> Processes(const std::vector<Receiver>& to) {
  std::vector<uint32_t> processes;
  for (const Receiver& receiver : to) processes.push_back(receiver.process);
  return processes;
}

}  // namespace

void ShmTransport::Notify(uint32_t process, std::string_view notice) {
  Lock lock(mutex_);
  Peer* const peer = At(process);
  if (peer == nullptr || notice.size() > kMaxNotice) return;
  shm::Record record;
  record.bytes = static_cast<uint32_t>(notice.size());
  Write(*peer, record, reinterpret_cast<const std::byte*>(notice.data()));
}

void ShmTransport::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  Outgoing outgoing{to, std::move(spans), {}, std::move(done), Status()};
  outgoing.extent = Measure(outgoing.spans);
  if (outgoing.extent.bytes > kMaxMessage) {
    return outgoing.done(InvalidArgument("a message of " + FormatBytes(outgoing.extent.bytes) + "; at most " +
                                         FormatBytes(kMaxMessage) + " can be sent at once."));
  }
  if (to.empty()) return outgoing.done(Status());
  Lock lock(mutex_);
  if (cancelled_.Contains(to.front().id.call)) return;
  if (!DropGone(&outgoing) || outgoing.extent.bytes <= static_cast<int64_t>(shm::kMaxInline)) {
    SendInline(outgoing);
    lock.unlock();
    return outgoing.done(outgoing.status);
  }
  std::vector<uint32_t> processes = Processes(outgoing.to);
  const auto queue = waiting_.find(processes);
  std::optional<shm::Place> place;
  if (queue == waiting_.end() || queue->second.empty()) place = ReservePlace(processes, outgoing.extent.bytes);
  if (place) return CopyAndPublish(std::move(outgoing), *place, lock);
  for (const uint32_t process : processes) {
    if (Peer* const peer = At(process)) peer->unrung = peer->must_read = true;
  }
  waiting_[std::move(processes)].push_back(std::move(outgoing));
  if (memory_->header().waits.load() == 0) shm::Ring(memory_->doorbell());
}

void ShmTransport::Flush() {
  std::vector<Peer*> peers;
  {
    Lock lock(mutex_);
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (!peer) continue;
      const bool unrung = std::exchange(peer->unrung, false), is_deferred = std::exchange(peer->is_deferred, false);
      if (unrung || is_deferred) peers.push_back(peer.get());
      peer->must_read = false;
    }
  }
  for (const Peer* const peer : peers) shm::Ring(peer->memory->doorbell());
}

// Flushes, but defers the wake-ups of dozing progress threads (kDozing in doorbell.h) until the next Flush.
void ShmTransport::FlushSoftly() {
  Lock lock(mutex_);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer || !std::exchange(peer->unrung, false)) continue;
    std::atomic<uint32_t>& doorbell = peer->memory->doorbell();
    if (std::exchange(peer->must_read, false)) {
      shm::Ring(doorbell);
    } else if (!shm::RingSoftly(doorbell)) {
      peer->is_deferred = true;
    }
  }
}

// Removes receivers that have ended, are cut off, or are on another host. Returns whether any receiver is left.
bool ShmTransport::DropGone(Outgoing* outgoing) {
  const auto is_gone = [&](const Receiver& receiver) {
    const Peer* const peer = At(receiver.process);
    if (peer != nullptr && peer->usable()) return false;
    const std::string name = "process " + std::to_string(receiver.process);
    outgoing->status = peer == nullptr ? InvalidArgument(name + " is not another process of this host.")
                       : peer->ended() ? peer->end
                                       : Status(Code::kInternal, name + " has been cut off: " + peer->broken);
    return true;
  };
  outgoing->to.erase(std::remove_if(outgoing->to.begin(), outgoing->to.end(), is_gone), outgoing->to.end());
  return !outgoing->to.empty();
}

void ShmTransport::SendInline(const Outgoing& outgoing) {
  if (outgoing.to.empty()) return;
  std::array<std::byte, shm::kMaxInline> bytes;
  if (outgoing.extent.carried != outgoing.extent.bytes) bytes.fill(std::byte{0});
  Gather(outgoing.spans, outgoing.extent.at, bytes.data());
  for (const Receiver& receiver : outgoing.to) {
    shm::Record record = MakeRecord(shm::Record::kInline, receiver.id, outgoing.extent);
    record.bytes = static_cast<uint32_t>(outgoing.extent.bytes);
    Write(*At(receiver.process), record, bytes.data());
  }
}

std::optional<shm::Place> ShmTransport::ReservePlace(const std::vector<uint32_t>& processes, int64_t bytes) {
  for (const uint32_t process : processes) CollectReleases(*At(process));
  return slots_.Reserve(processes, bytes);
}

void ShmTransport::CollectReleases(Peer& peer) {
  if (!peer.usable()) return;
  const uint64_t released = peer.from.released.load();
  if (released - peer.releases_read > shm::kReleases) return Break(peer, "it released more messages than it held");
  while (peer.releases_read != released) {
    const uint32_t slot = peer.from.releases[peer.releases_read++ % shm::kReleases].load(std::memory_order_relaxed);
    if (!slots_.Release(peer.process, slot)) return Break(peer, "it released a slot that it did not hold");
  }
}

// The caller holds `lock`, which is released during the copy and the callback.
void ShmTransport::CopyAndPublish(Outgoing outgoing, shm::Place place, Lock& lock) {
  const CallId call = outgoing.to.front().id.call;
  ++calls_[call].copies;
  lock.unlock();
  Gather(outgoing.spans, outgoing.extent.at, memory_->slot(place.slot) + place.offset);
  lock.lock();
  const bool cancelled = EndCopy(call);
  for (const Receiver& receiver : outgoing.to) {
    if (cancelled) {
      slots_.Release(receiver.process, place.slot);
      continue;
    }
    shm::Record record = MakeRecord(shm::Record::kInSlot, receiver.id, outgoing.extent);
    record.slot = place.slot;
    record.offset = place.offset;
    Write(*At(receiver.process), record, nullptr);
  }
  slots_.Release(process_, place.slot);
  if (!waiting_.empty()) shm::Ring(memory_->doorbell());  // the slot may be free now, so a waiting message can use it
  DropGone(&outgoing);
  lock.unlock();
  if (!cancelled) outgoing.done(outgoing.status);
  outgoing.done = nullptr;  // the callback is destroyed without the lock
  lock.lock();
}

void ShmTransport::Write(Peer& peer, const shm::Record& record, const std::byte* bytes) {
  if (!peer.usable()) return;
  if (peer.queue.empty()) {
    const shm::RingResult result = peer.writer.Write(record, bytes);
    if (result == shm::RingResult::kBroken) return Break(peer, "it read more than was written");
    if (result == shm::RingResult::kDone) {
      peer.unrung = true;
      return;
    }
  }
  peer.queue.emplace_back(record, std::vector<std::byte>(bytes, bytes + record.bytes));
  peer.unrung = peer.must_read = true;
  if (memory_->header().waits.load() == 0) shm::Ring(memory_->doorbell());
}

// Sends waiting records and messages. Returns whether some still wait. Sets the `waits` flag before the last attempt,
// so that a reader that makes room after this attempt sees the flag and rings the doorbell.
bool ShmTransport::SendWaiting() {
  Lock lock(mutex_);
  std::atomic<uint32_t>& waits = memory_->header().waits;
  bool some = SendWaitingOnce(lock);
  if (some && waits.load() == 0) {
    waits.store(1);
    some = SendWaitingOnce(lock);
  }
  if (!some) waits.store(0);
  return some;
}

// Sends the waiting records and messages that have room. Returns whether some still wait.
bool ShmTransport::SendWaitingOnce(Lock& lock) {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer) continue;
    CollectReleases(*peer);
    while (!peer->queue.empty() && peer->usable()) {
      const auto& [record, bytes] = peer->queue.front();
      const shm::RingResult result = peer->writer.Write(record, bytes.data());
      if (result == shm::RingResult::kBroken) Break(*peer, "it read more than was written");
      if (result != shm::RingResult::kDone) break;
      peer->queue.pop_front();
      peer->unrung = true;
    }
  }
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    std::deque<Outgoing>& queue = next->second;  // other threads may change the queue while the lock is released
    while (!queue.empty()) {
      const bool is_left = DropGone(&queue.front());
      std::optional<shm::Place> place;
      if (is_left) place = ReservePlace(Processes(queue.front().to), queue.front().extent.bytes);
      if (is_left && !place) break;
      Outgoing outgoing = std::move(queue.front());
      queue.pop_front();
      if (place) {
        CopyAndPublish(std::move(outgoing), *place, lock);
        continue;
      }
      lock.unlock();
      outgoing.done(outgoing.status);
      outgoing.done = nullptr;
      lock.lock();
    }
    next = queue.empty() ? waiting_.erase(next) : std::next(next);
  }
  const auto waits = [](const std::unique_ptr<Peer>& peer) { return peer && !peer->queue.empty() && peer->usable(); };
  return !waiting_.empty() || std::any_of(peers_.begin(), peers_.end(), waits);
}

}  // namespace jaxcomm
