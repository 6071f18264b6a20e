#include <optional>
#include <utility>

#include "cc/base/text.h"
#include "cc/transport/shm/doorbell.h"
#include "cc/transport/shm/peer.h"
#include "cc/transport/shm/shm_transport.h"

namespace jaxcomm {
namespace {

constexpr int64_t kEarlyCost = 512;  // overhead of an early message, in bytes

bool IsSound(const shm::Record& record, uint32_t slots) {
  if (record.kind == shm::Record::kNotice) return true;
  if (record.at < 0 || record.extent < 0 || record.extent > Transport::kMaxMessage) return false;
  if (record.carried < 0 || record.carried > record.extent) return false;
  if (record.kind == shm::Record::kInline) return record.extent == record.bytes;
  return record.kind == shm::Record::kInSlot && record.slot < slots && record.offset <= shm::kSlotBytes &&
         record.extent <= shm::kSlotBytes - record.offset;
}

std::string Describe(const Extent& extent) {
  return std::to_string(extent.carried) + " of " + std::to_string(extent.bytes) + " bytes at offset " +
         std::to_string(extent.at);
}

}  // namespace

void ShmTransport::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                        Received done) {
  Posted posted{std::move(spans), accepts_view, std::move(done)};
  Lock lock(mutex_);
  if (cancelled_.Contains(id.call)) return;
  Peer* const peer = At(process);
  if (peer == nullptr || Measure(posted.spans).bytes > kMaxMessage) {
    lock.unlock();
    posted.done(InvalidArgument("a message from process " + std::to_string(process) + " of " +
                                FormatBytes(Measure(posted.spans).bytes) + ": no such process, or too many bytes."),
                nullptr);
    return;
  }
  Call& call = calls_[id.call];
  const auto early = call.early.find({process, id});
  if (peer->early_bytes > kMaxEarlyBytes) shm::Ring(memory_->doorbell());  // the peer's ring may be read again
  if (early != call.early.end()) {
    Arrived arrived = std::move(early->second);
    call.early.erase(early);
    peer->early_bytes -= arrived.charge;
    Deliver(*peer, call, id, std::move(posted), std::move(arrived), lock);
  } else if (peer->ended()) {
    ForgetIfIdle(id.call);
    const Status end = peer->end;
    lock.unlock();
    posted.done(end, nullptr);
  } else if (call.posted.count({process, id}) != 0) {
    lock.unlock();
    posted.done(InvalidArgument("a message from process " + std::to_string(process) + " is posted twice."), nullptr);
  } else {
    call.posted.emplace(Key(process, id), std::move(posted));
    ++peer->posted;
  }
}

// Returns false if views hold as many of the peer's slots as this process may hold (share()). The caller then releases
// its view, so that at least one slot is free for new messages.
bool ShmTransport::MayKeep(uint32_t process) {
  const Peer* const peer = Find(process);
  return peer != nullptr && peer->slots->held() < slots_.share();
}

// `to_its_end`: the peer has stopped writing, so the number of remaining messages is bounded. In that case all of them
// are read, even if no call expects them.
void ShmTransport::Read(Peer& peer, bool to_its_end) {
  shm::Record record;
  shm::RingReader::Bytes bytes;
  const uint64_t before = peer.reader.bytes_read();
  peer.reader.Look();
  for (;;) {
    {
      Lock lock(mutex_);
      if (!peer.usable()) break;
      if (peer.early_bytes > kMaxEarlyBytes && peer.posted == 0 && !to_its_end) break;
    }
    const shm::RingResult result = peer.reader.Read(&record, &bytes);
    if (result == shm::RingResult::kEmpty) break;
    if (result == shm::RingResult::kBroken || !IsSound(record, slots_.count())) {
      Lock lock(mutex_);
      Break(peer, "it wrote an invalid message into its memory");
      break;
    }
    if (record.kind == shm::Record::kNotice) {
      events_->OnNotice(peer.process, {reinterpret_cast<const char*>(bytes.data()), record.bytes});
    } else {
      Arrive(peer, record, bytes.data());
    }
  }
  peer.reader.Publish();
  if (peer.reader.bytes_read() != before && peer.memory->header().waits.load() != 0) {
    shm::Ring(peer.memory->doorbell());
  }
}

void ShmTransport::Arrive(Peer& peer, const shm::Record& record, const std::byte* bytes) {
  const bool in_slot = record.kind == shm::Record::kInSlot;
  Arrived arrived{Extent{record.at, record.extent, record.carried},
                  in_slot ? shm::PeerSlots::View(peer.slots, record.slot, record.offset) : View(View(), bytes),
                  in_slot};
  Lock lock(mutex_);
  if (cancelled_.Contains(record.id.call)) return;
  Call& call = calls_[record.id.call];
  const auto message = call.posted.find({peer.process, record.id});
  if (message == call.posted.end()) return KeepEarly(peer, call, record.id, std::move(arrived));
  Deliver(peer, call, record.id, TakePosted(peer, call, message), std::move(arrived), lock);
}

void ShmTransport::KeepEarly(Peer& peer, Call& call, const MessageId& id, Arrived arrived) {
  if (call.early.count({peer.process, id}) != 0) return Break(peer, "it sent a message twice");
  arrived.charge = kEarlyCost;
  // Copies the message out of its slot if views already hold more than half of the slots that this process may hold.
  if (!arrived.may_stay || peer.slots->held() * 2 > slots_.share()) {
    const auto copy =
        std::make_shared<std::vector<std::byte>>(arrived.bytes.get(), arrived.bytes.get() + arrived.extent.bytes);
    arrived.bytes = View(copy, copy->data());
    arrived.may_stay = true;
    arrived.charge += arrived.extent.bytes;
  }
  peer.early_bytes += arrived.charge;
  if (peer.early_bytes > 2 * kMaxEarlyBytes) Break(peer, "it sent too many bytes that no call expects");
  call.early.emplace(Key(peer.process, id), std::move(arrived));
}

ShmTransport::Posted ShmTransport::TakePosted(Peer& peer, Call& call, std::map<Key, Posted>::iterator message) {
  Posted posted = std::move(message->second);
  call.posted.erase(message);
  --peer.posted;
  return posted;
}

void ShmTransport::Deliver(Peer& peer, Call& call, const MessageId& id, Posted posted, Arrived arrived, Lock& lock) {
  const Extent expected = Measure(posted.spans);
  if (!(expected == arrived.extent)) {
    Break(peer, "it sent " + Describe(arrived.extent) + " of a message where " + Describe(expected) + " are expected");
    const Status end = peer.end;
    if (end.ok()) {  // the Post fails when the peer ends
      call.posted.emplace(Key(peer.process, id), std::move(posted));
      ++peer.posted;
    }
    lock.unlock();
    if (!end.ok()) posted.done(end, nullptr);
    return;
  }
  ++call.copies;
  lock.unlock();
  View view;
  if (posted.accepts_view && arrived.may_stay) {
    view = View(arrived.bytes, arrived.bytes.get() - arrived.extent.at);
  } else {
    Scatter(arrived.bytes.get(), arrived.extent.at, posted.spans);
  }
  arrived.bytes = nullptr;  // the sender may reuse the slot
  lock.lock();
  const bool cancelled = EndCopy(id.call);
  lock.unlock();
  if (!cancelled) posted.done(Status(), std::move(view));
}

}  // namespace jaxcomm
