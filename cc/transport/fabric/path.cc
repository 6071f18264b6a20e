// Sends, receives and acknowledges the frames of one path of FabricTransport, and ends the path.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/base/own_descriptors.h"
#include "cc/transport/fabric/library.h"
#include "cc/transport/fabric/peer.h"
#include "cc/transport/spans.h"

namespace jaxcomm {
namespace {

constexpr std::array<uint64_t, kFrameSizes> kTags = {1, 2};
constexpr std::chrono::milliseconds kReportDelay(5);  // time that an acknowledgement may wait for a frame to carry it

// Raises `count` to the full count whose low 16 bits are `arrived`. A head that was overtaken by a later head has an
// older count, which is ignored. `limit`: the largest possible count.
void Grow(uint32_t& count, uint16_t arrived, uint32_t limit) {
  const auto step = static_cast<uint16_t>(arrived - static_cast<uint16_t>(count));
  if (step <= limit - count) count += step;
}

}  // namespace

void FabricTransport::Write(Lock& lock, SocketPeer& its) {
  Peer& peer = static_cast<Peer&>(its);
  for (const FrameSize size : {kSmall, kLarge}) WriteLane(lock, peer, size);
  if (!callbacks_.empty() || is_refused_) Wake();
}

void FabricTransport::WriteLane(Lock& lock, Peer& peer, FrameSize size) {
  Peer::Lane& lane = peer.lanes[size];
  while (peer.gone.ok() && peer.is_expected && !lane.frames.empty() && lane.sent - lane.freed_there < windows_[size]) {
    Slot* const slot = arena_->Take(size);
    if (slot == nullptr) return;
    Peer::Frame& frame = lane.frames.front();
    EncodeHeader(frame.header, slot->data);
    std::byte* end = slot->data + kHeadBytes;
    if (frame.message) {
      for (const ConstSpan& span : frame.message->spans) {
        CopyBytes(end, span.data, span.bytes);
        end += span.bytes;
      }
    } else {
      end = std::copy(frame.copy.begin(), frame.copy.end(), end);
    }
    if (!SendFrame(lock, peer, slot, lane.sent, static_cast<size_t>(end - slot->data))) return;
    ++lane.sent;
    peer.copied -= frame.copy.size();
    if (frame.message) Finish(std::move(frame.message));
    lane.frames.pop_front();
  }
}

// Sends the frame in the slot with the current counts. Returns false if libfabric has not accepted the frame.
bool FabricTransport::SendFrame(Lock& lock, Peer& peer, Slot* slot, uint32_t number, size_t bytes) {
  FabricHead head;
  head.process = static_cast<uint16_t>(process_);
  head.number = number;
  head.arrived = static_cast<uint16_t>(peer.arrived());
  for (const FrameSize size : {kSmall, kLarge}) head.freed[size] = static_cast<uint16_t>(peer.lanes[size].freed);
  SealHead(head, peer.path.sends, slot->data);
  slot->process = peer.process;
  slot->path = peer.path_number;
  const int64_t error = endpoint_->Send(peer.address, slot->data, bytes, described_, kTags[slot->size], slot);
  if (error != 0) {
    arena_->GiveBack(slot);
    is_refused_ = is_refused_ || error == -FI_EAGAIN;
    if (error != -FI_EAGAIN) Fail(lock, peer, Gone(peer.process, Libfabric::Get().value().Describe(error)));
    return false;
  }
  for (Peer::Lane& lane : peer.lanes) lane.reported = lane.freed;
  peer.reported_arrived = peer.arrived();
  peer.unreported_since = {};
  return true;
}

// Sends the counts alone, if the process may wait for them or if no frame has carried them for a while.
void FabricTransport::Report(Lock& lock, Peer& peer) {
  if (!peer.gone.ok() || !peer.is_expected || !peer.owes_report()) return;
  const auto now = Clock::now();
  if (peer.unreported_since == Clock::time_point()) peer.unreported_since = now;
  const auto is_due = [&](FrameSize size) {
    return peer.lanes[size].freed - peer.lanes[size].reported >= windows_[size] / 2;
  };
  if (!is_due(kSmall) && !is_due(kLarge) && now < peer.unreported_since + kReportDelay) return;
  Slot* const slot = arena_->Take(kSmall);
  if (slot == nullptr) return;
  std::fill_n(slot->data, kHeadBytes, std::byte{0});
  StoreNumber<uint32_t>(kAcknowledgement, slot->data);
  SendFrame(lock, peer, slot, 0, kHeadBytes);
}

void FabricTransport::EndSend(Lock& lock, Slot* slot, int error) {
  Peer* const peer = PathOf(*slot);
  arena_->GiveBack(slot);
  if (error != 0 && peer != nullptr) Fail(lock, *peer, Gone(peer->process, Libfabric::Get().value().Describe(error)));
}

FabricTransport::Peer* FabricTransport::PathOf(const Slot& slot) {
  const auto found = peers_.find(slot.process);
  const bool is_open = found != peers_.end() && found->second->gone.ok() && found->second->path_number == slot.path;
  return is_open ? found->second.get() : nullptr;
}

void FabricTransport::Receive(Slot* slot) {
  slot->path = 0;
  const int64_t error = endpoint_->Receive(slot->data, kFrameBytes[slot->size], described_, kTags[slot->size], slot);
  if (error != 0) to_receive_.push_back(slot);
}

// Handles a frame that has arrived in the slot.
void FabricTransport::Take(Lock& lock, Slot* slot, size_t bytes) {
  const FabricHead head = bytes < kHeadBytes ? FabricHead() : DecodeHead(slot->data);
  const auto found = bytes < kHeadBytes ? peers_.end() : peers_.find(head.process);
  if (found == peers_.end() || !found->second->gone.ok()) return Receive(slot);
  Peer& peer = *found->second;
  const auto type = LoadNumber<uint32_t>(slot->data);
  const bool is_report = type == kAcknowledgement;
  const bool has_arrived_before = !is_report && slot->size == kSmall &&
                                  (static_cast<int32_t>(head.number - peer.next) < 0 || peer.ahead.count(head.number));
  if (!IsSealed(slot->data, peer.path.receives) || has_arrived_before) {
    ++peer.forged;
    return Receive(slot);
  }
  const uint32_t before = peer.arrived_there;
  Grow(peer.arrived_there, head.arrived, peer.sent());
  peer.confirmed += peer.arrived_there - before;
  for (const FrameSize size : {kSmall, kLarge}) {
    Grow(peer.lanes[size].freed_there, head.freed[size], peer.lanes[size].sent);
  }
  if (is_report) return Receive(slot);
  slot->process = peer.process;
  slot->path = peer.path_number;
  ++peer.lanes[slot->size].arrived;
  if (type == kTrial) return Free(peer, slot);
  const Result<Header> header = DecodeHeader(slot->data);
  const bool has_other_size = header.ok() && (header.value().bytes + kHeadBytes != bytes ||
                                              &peer.LaneOf(header.value()) != &peer.lanes[slot->size]);
  Status status = has_other_size ? InvalidArgument("a frame of another length") : header.status();
  if (!status.ok()) {
    Receive(slot);
    return Fail(lock, peer, CutOff(peer.process, status));
  }
  slot->size == kSmall ? (void)peer.ahead.emplace(head.number, slot) : (void)(status = TakeFrame(peer, slot));
  while (status.ok() && !peer.ahead.empty() && peer.ahead.begin()->first == peer.next) {
    Slot* const next = peer.ahead.begin()->second;
    peer.ahead.erase(peer.ahead.begin());
    ++peer.next;
    status = TakeFrame(peer, next);
  }
  if (!status.ok()) return Fail(lock, peer, CutOff(peer.process, status));
  if (peer.left) Fail(lock, peer, Status(Code::kInternal, "process " + std::to_string(peer.process) + " has left"));
}

Status FabricTransport::TakeFrame(Peer& peer, Slot* slot) {
  const Header header = DecodeHeader(slot->data).value();
  if (header.type == FrameType::kMessage) {
    Status status = TakeMessage(peer, slot, header);
    if (!status.ok()) Receive(slot);
    return status;
  }
  if (header.type == FrameType::kNotice) {
    inbox_.Notice(peer.process, {reinterpret_cast<const char*>(slot->data + kHeadBytes), header.bytes});
  } else {
    peer.left = true;
  }
  Free(peer, slot);
  return Status();
}

Status FabricTransport::TakeMessage(Peer& peer, Slot* slot, const Header& header) {
  Result<std::optional<Incoming>> begun = inbox_.Begin(peer.process, header.id, header.bytes);
  if (!begun.ok()) return begun.status();
  if (!begun.value()) {
    peer.waiting.push_back(slot);
    return Status();
  }
  Incoming arrival = std::move(*begun.value());
  const bool as_view =
      slot->size == kLarge && arrival.posted && arrival.posted->accepts_view && !HasGaps(arrival.spans);
  if (as_view) {
    std::shared_ptr<const std::byte> view(slot->data + kHeadBytes,
                                          [arena = arena_, slot](const std::byte*) { arena->Release(slot); });
    callbacks_.Push(header.id.call,
                    [done = std::move(arrival.posted->done), view = std::move(view)] { done(Status(), view); });
    return Status();  // the slot is freed when the view ends
  }
  if (!arrival.spans.empty()) ScatterPacked(slot->data + kHeadBytes, arrival.spans);
  inbox_.End(std::move(arrival));
  Free(peer, slot);
  return Status();
}

void FabricTransport::Free(Peer& peer, Slot* slot) {
  ++peer.lanes[slot->size].freed;
  Receive(slot);
}

void FabricTransport::Ask(Peer& peer) {
  if (peer.is_asked || peer.sent() == peer.arrived_there) return;
  peer.is_asked = send(peer.path.connection, &kAsk, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
  peer.asked = peer.sent();
}

// Reads kExpects, kAsk, kHere or the end of the connection. Any other byte is an error.
void FabricTransport::ReadConnection(Lock& lock, Peer& peer) {
  std::array<std::byte, 64> read;
  const ssize_t bytes = recv(peer.path.connection, read.data(), read.size(), MSG_DONTWAIT);
  const int error = bytes < 0 ? errno : 0;
  if (error == EAGAIN || error == EINTR) return;
  Drain(lock);  // handles the frames that arrived before these bytes
  if (!peer.gone.ok()) return;
  if (bytes <= 0) return Fail(lock, peer, Gone(peer.process, DescribeEnd(error)));
  for (ssize_t i = 0; i < bytes; ++i) {
    const std::byte byte = read[static_cast<size_t>(i)];
    if (byte == kExpects) {
      peer.is_expected = true;
    } else if (byte == kAsk) {
      send(peer.path.connection, &kHere, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (byte == kHere) {
      if (std::exchange(peer.is_asked, false)) peer.answered = peer.asked;
    } else {
      const Status why = InvalidArgument("unexpected bytes over the connection that shows whether it is alive");
      return Fail(lock, peer, CutOff(peer.process, why));
    }
  }
}

void FabricTransport::Fail(Lock&, SocketPeer& its, const Status& end) {
  Peer& peer = static_cast<Peer&>(its);
  if (!peer.gone.ok()) return;
  peer.left |= stopping_;
  const Status why = stopping_ ? Status(Code::kInternal, "this process has left the job") : end;
  if (peer.silent_looks > 0) ResetAtClose(peer.path.connection);  // the host is silent: a FIN would get lost
  shutdown(peer.path.connection, SHUT_RDWR);                      // a forked child may hold the connection open
  ReportEnd(peer, why);
  inbox_.Fail(peer.process, why, std::nullopt);
  End(peer, why);
  Wake();
}

void FabricTransport::End(Peer& peer, const Status& why) {
  peer.gone = why;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.path.connection, nullptr);
  CloseOwn(std::exchange(peer.path.connection, -1));
  for (Peer::Lane& lane : peer.lanes) {
    for (Peer::Frame& frame : lane.frames) {
      if (!frame.message) continue;
      frame.message->status = why;
      Finish(std::move(frame.message));
    }
    lane.frames.clear();
  }
  for (const auto& [number, slot] : peer.ahead) Receive(slot);
  for (Slot* const slot : peer.waiting) Receive(slot);
  peer.ahead.clear();
  peer.waiting.clear();
}

}  // namespace jaxcomm
