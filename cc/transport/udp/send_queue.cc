#include "cc/transport/udp/send_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

void SendQueue::Push(const Header& header, std::shared_ptr<Outgoing> message, size_t priority) {
  PushCopy(header, {}, priority);
  waiting_[priority].unsent.back()->message = std::move(message);
}

void SendQueue::PushCopy(const Header& header, const std::vector<ConstSpan>& payload, size_t priority) {
  auto frame = std::make_shared<Frame>();
  frame->header = header;
  frame->priority = priority;
  frame->bytes = frame->reliable = kHeaderBytes + header.bytes;
  frame->own.reserve(payload.empty() ? kHeaderBytes : frame->bytes);
  frame->own.resize(kHeaderBytes);
  EncodeHeader(header, frame->own.data());
  for (const ConstSpan& span : payload) frame->own.insert(frame->own.end(), span.data, span.data + span.bytes);
  Add(std::move(frame));
}

void SendQueue::PushLossy(const MessageId& id, std::vector<bool> important, const LossLimit& limit,
                          std::shared_ptr<Outgoing> message, size_t priority) {
  auto frame = std::make_shared<Frame>();
  frame->priority = priority;
  const size_t front = LossyFrontBytes(important.size());
  frame->reliable = frame->bytes = static_cast<uint32_t>(front);
  frame->may_lose = static_cast<uint32_t>(limit.bytes);
  frame->has_time_limit = limit.until.has_value();
  for (size_t i = 0; i < important.size(); ++i) {
    const auto bytes = static_cast<uint32_t>(message->spans[i].bytes);
    frame->bytes += bytes;
    if (important[i]) frame->reliable += bytes;
  }
  frame->header = {FrameType::kMessage, static_cast<uint32_t>(frame->bytes - front), id};
  message->spans = ImportantFirst(message->spans, important);
  frame->own = EncodeLossy(frame->header, {frame->reliable, frame->may_lose, std::move(important)});
  frame->message = std::move(message);
  frame->is_lossy = true;
  Add(std::move(frame));
}

void SendQueue::Add(std::shared_ptr<Frame> frame) {
  Waiting& waiting = waiting_[frame->priority];
  copied_bytes_ += frame->own.size();
  waiting.bytes += frame->bytes;
  waiting.unsent.push_back(std::move(frame));
}

bool SendQueue::is_waiting() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const Waiting& waiting) { return waiting.has_frames(); });
}

size_t SendQueue::NextPriority() const {
  size_t path = 0;
  while (!has_next(path)) ++path;
  return PriorityOf(path);
}

bool SendQueue::has_next() const {
  for (size_t path = 0; path < paths_.size(); ++path) {
    if (has_next(path)) return true;
  }
  return false;
}

bool SendQueue::has_next(size_t number) const {
  const Path& path = paths_[number];
  if (path.under_way.size() + 1 >= kAnsweredPackets) return false;
  if (path.under_way_bytes > 0 && path.under_way_bytes + static_cast<int64_t>(fragment_) > window_) return false;
  const Waiting& waiting = waiting_[PriorityOf(number)];
  return !waiting.lost.empty() || (!waiting.unsent.empty() && MayBegin(*waiting.unsent.front()));
}

// Retransmitted packets count as important.
bool SendQueue::IsNextImportant(size_t path) const {
  const auto& [unsent, lost, bytes] = waiting_[PriorityOf(path)];
  return !lost.empty() || unsent.empty() || !MayLose({unsent.front(), unsent.front()->sent});
}

bool SendQueue::MayBegin(const Frame& frame) const {
  const size_t kind = KindOf(frame);
  return frame.sent > 0 || frames_[kind].empty() || next_frame_[kind] - *frames_[kind].begin() < kMaxFrames;
}

std::optional<PacketHeader> SendQueue::Next(int64_t now, std::byte* bytes, size_t* size, size_t number) {
  if (!has_next(number)) return std::nullopt;
  Path& path = paths_[number];
  Waiting& waiting = waiting_[PriorityOf(number)];
  Fragment fragment;
  if (!waiting.lost.empty()) {
    fragment = std::move(waiting.lost.front());
    waiting.lost.pop_front();
  } else {
    fragment.frame = waiting.unsent.front();
    Frame& frame = *fragment.frame;
    if (frame.sent == 0) {
      frame.number = next_frame_[KindOf(frame)]++;
      frame.missing = static_cast<uint32_t>((frame.bytes + fragment_ - 1) / fragment_);
      frames_[KindOf(frame)].insert(frame.number);
    }
    fragment.offset = frame.sent;
    frame.sent += static_cast<uint32_t>(Size(fragment));
    if (frame.sent == frame.bytes) waiting.unsent.pop_front();
  }
  Frame& frame = *fragment.frame;
  *size = Size(fragment);
  Read(frame, fragment.offset, *size, bytes);
  waiting.bytes -= static_cast<int64_t>(*size);
  fragment.sent = now;
  fragment.is_unsent = false;
  path.ends_message = frame.message != nullptr;
  const PacketKind kind = frame.is_lossy       ? PacketKind::kLossy
                          : KindOf(frame) == 0 ? PacketKind::kMessage
                                               : PacketKind::kOrdered;
  const uint32_t offset = fragment.offset;
  Depart(path, std::move(fragment));
  NotePauses();
  path.has_paused = false;
  // Requests an acknowledgement only if a caller waits for it: when no further packet of a message that was not copied
  // may be sent now.
  const bool asks = frame.message != nullptr && !has_next(number);
  const auto sent = static_cast<uint16_t>(SentWhole(number));
  return PacketHeader{kind, asks, path.oldest + path.under_way.size() - 1, frame.number, offset, frame.bytes, sent};
}

// Returns the number of messages that have been sent completely at least once, and have no droppable bytes in flight
// on other paths.
uint64_t SendQueue::SentWhole(size_t path) const {
  uint64_t whole = next_frame_[0];
  for (const auto& [unsent, lost, bytes] : waiting_) {
    const bool is_begun = !unsent.empty() && unsent.front()->sent > 0 && KindOf(*unsent.front()) == 0;
    if (is_begun) whole = std::min(whole, unsent.front()->number);
    for (const Fragment& fragment : lost) {
      if (!fragment.is_unsent) break;
      if (KindOf(*fragment.frame) == 0) whole = std::min(whole, fragment.frame->number);
    }
  }
  for (size_t other = 0; other < paths_.size(); ++other) {
    if (other == path || paths_[other].lossy_under_way == 0) continue;
    for (const Fragment& fragment : paths_[other].under_way) {
      if (fragment.frame && fragment.frame->is_lossy) whole = std::min(whole, fragment.frame->number);
    }
  }
  return whole;
}

// Adds a packet to those in flight on a path.
void SendQueue::Depart(Path& path, Fragment fragment) {
  path.under_way_bytes += static_cast<int64_t>(Size(fragment));
  path.lossy_under_way += fragment.frame && fragment.frame->is_lossy;
  path.under_way.push_back(std::move(fragment));
}

// Removes the oldest packet from those in flight on a path.
SendQueue::Fragment SendQueue::TakeOldest(Path& path) {
  Fragment fragment = std::move(path.under_way.front());
  path.under_way.pop_front();
  ++path.oldest;
  path.under_way_bytes -= static_cast<int64_t>(Size(fragment));
  path.lossy_under_way -= fragment.frame && fragment.frame->is_lossy;
  return fragment;
}

// Queues a packet for retransmission.
void SendQueue::Wait(Fragment fragment, bool is_first) {
  Waiting& waiting = waiting_[fragment.frame->priority];
  waiting.bytes += static_cast<int64_t>(Size(fragment));
  waiting.lost.insert(is_first ? waiting.lost.begin() : waiting.lost.end(), std::move(fragment));
}

// Marks the paths without packets in flight as paused if nothing of their priority waits to be sent.
void SendQueue::NotePauses() {
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (!waiting_[PriorityOf(i)].has_frames()) paths_[i].has_paused |= paths_[i].under_way.empty();
  }
}

size_t SendQueue::Size(const Fragment& fragment) const {
  return fragment.frame ? std::min<size_t>(fragment_, fragment.frame->bytes - fragment.offset) : 0;
}

void SendQueue::Read(Frame& frame, uint32_t offset, size_t size, std::byte* out) {
  const size_t own = offset < frame.own.size() ? std::min(size, frame.own.size() - offset) : 0;
  if (own > 0) std::memcpy(out, frame.own.data() + offset, own);
  if (own == size) return;
  out += own;
  VisitPacked(frame.message->spans, static_cast<int64_t>(offset + own - frame.own.size()),
              static_cast<int64_t>(size - own), &frame.cursor, [&out](const std::byte* data, int64_t part, int64_t) {
                CopyBytes(out, data, part);
                out += part;
              });
}

PacketHeader SendQueue::Probe(int64_t now, size_t number) {
  Path& path = paths_[number];
  while (path.under_way.size() + 1 >= kAnsweredPackets) {  // the oldest packet would not fit into an acknowledgement
    Fragment oldest = TakeOldest(path);
    if (IsLeft(oldest)) Wait(std::move(oldest), /*is_first=*/false);
  }
  path.under_way.push_back({nullptr, 0, now});
  path.ends_message = false;
  const uint64_t sent = SentWhole(number);
  if (sent >= owed_) owed_ = 0;
  const uint64_t newest = path.oldest + path.under_way.size() - 1;
  return {PacketKind::kProbe, /*asks=*/true, newest, 0, 0, 0, static_cast<uint16_t>(sent)};
}

void SendQueue::Unsend(size_t count, size_t number) {
  Path& path = paths_[number];
  for (; count > 0 && !path.under_way.empty(); --count) {  // stops early if packets were acknowledged meanwhile
    Fragment newest = std::move(path.under_way.back());
    path.under_way.pop_back();
    path.under_way_bytes -= static_cast<int64_t>(Size(newest));
    path.lossy_under_way -= newest.frame && newest.frame->is_lossy;
    if (!IsLeft(newest)) continue;
    newest.is_unsent = true;
    Wait(std::move(newest), /*is_first=*/true);
  }
}

Result<Answered> SendQueue::Take(const PacketHeader& answer, const std::byte* bits,
                                 std::vector<std::shared_ptr<Outgoing>>* done, size_t number) {
  Path& path = paths_[number];
  if (answer.frame >= path.oldest + path.under_way.size()) {
    return InvalidArgument("an answer to packet " + std::to_string(answer.frame) + ", which was never sent to it");
  }
  Answered answered;
  if (answer.number <= path.newest_answer) return answered;
  path.newest_answer = answer.number;
  while (path.oldest <= answer.frame && !path.under_way.empty()) {
    const uint64_t bit = answer.frame - path.oldest;
    Fragment fragment = TakeOldest(path);
    const size_t size = Size(fragment);
    const bool has_come =
        bit < kAnsweredPackets && (bits[bit / 8] & static_cast<std::byte>(1 << (bit % 8))) != std::byte{0};
    ++answered.packets;
    if (bit == 0) answered.sent = fragment.sent;
    if (!has_come) ++answered.lost;
    if (!fragment.frame) continue;
    if (has_come) {
      answered.bytes += static_cast<int64_t>(size);
      answered.longest_come = std::max(answered.longest_come, size);
      Come(*fragment.frame, done);
    } else if (IsLeft(fragment) && (answer.asks || !TakeLoss(fragment, done))) {
      // If `asks`, the receiver may have had no room for the packet, so the packet is not given up.
      if (!answer.asks && ++fragment.losses >= kOftenLost) {
        answered.often_lost = answered.often_lost == 0 ? size : std::min(answered.often_lost, size);
      }
      Wait(std::move(fragment), /*is_first=*/false);
    }
  }
  EndBefore(LoadNumber<uint64_t>(bits + kAnsweredPackets / 8), done);
  NotePauses();
  return answered;
}

void SendQueue::GiveUp(size_t number, std::vector<std::shared_ptr<Outgoing>>* done) {
  Path& path = paths_[number];
  while (!path.under_way.empty()) {
    Fragment fragment = TakeOldest(path);
    if (IsLeft(fragment) && !TakeLoss(fragment, done)) Wait(std::move(fragment), /*is_first=*/false);
  }
  path.ends_message = false;
  path.has_paused = true;
}

// Gives up a lost packet if its message may lose the packet. Returns false if the packet must be retransmitted.
bool SendQueue::TakeLoss(const Fragment& fragment, std::vector<std::shared_ptr<Outgoing>>* done) {
  if (fragment.frame->has_time_limit || !MayLose(fragment)) return false;
  fragment.frame->may_lose -= static_cast<uint32_t>(Size(fragment));
  fragment.frame->has_lost = true;
  Come(*fragment.frame, done);
  return true;
}

bool SendQueue::MayLose(const Fragment& fragment) const {
  return fragment.offset >= fragment.frame->reliable && Size(fragment) <= fragment.frame->may_lose;
}

void SendQueue::Come(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done) {
  if (!frame.is_over && --frame.missing == 0) End(frame, done);
}

void SendQueue::End(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done) {
  frame.is_over = true;
  if (frame.has_lost && paths_.size() > 1) owed_ = std::max(owed_, frame.number + 1);
  frames_[KindOf(frame)].erase(frame.number);
  copied_bytes_ -= frame.own.size();
  if (frame.message) done->push_back(std::move(frame.message));
}

// Ends the messages that the receiver has finished, even if bytes are missing. These messages have numbers below
// `number`.
void SendQueue::EndBefore(uint64_t number, std::vector<std::shared_ptr<Outgoing>>* done) {
  if (frames_[0].empty() || number <= *frames_[0].begin() || number > next_frame_[0]) return;
  std::vector<std::shared_ptr<Frame>> finished;
  const auto is_finished = [number](const std::shared_ptr<Frame>& frame) {
    return frame && KindOf(*frame) == 0 && frame->sent > 0 && frame->number < number;
  };
  const auto find = [&](const std::deque<Fragment>& fragments) {
    for (const Fragment& fragment : fragments) {
      if (is_finished(fragment.frame)) finished.push_back(fragment.frame);
    }
  };
  for (const Path& path : paths_) find(path.under_way);
  for (auto& [unsent, lost, bytes] : waiting_) {
    find(lost);
    for (auto fragment = lost.begin(); fragment != lost.end();) {
      const bool is_left = !is_finished(fragment->frame);
      if (!is_left) bytes -= static_cast<int64_t>(Size(*fragment));
      fragment = is_left ? std::next(fragment) : lost.erase(fragment);
    }
    if (unsent.empty() || !is_finished(unsent.front())) continue;
    finished.push_back(std::move(unsent.front()));
    unsent.pop_front();
    bytes -= finished.back()->bytes - finished.back()->sent;
  }
  for (const std::shared_ptr<Frame>& frame : finished) {
    if (!frame->is_over) End(*frame, done);
  }
}

void SendQueue::Cancel(const CallId& call) {
  for (auto& [unsent, lost, bytes] : waiting_) {
    std::deque<std::shared_ptr<Frame>> kept;
    for (std::shared_ptr<Frame>& frame : unsent) {
      const bool is_begun = frame->sent > 0;
      if (is_begun) Detach(*frame, call);
      if (is_begun || KindOf(*frame) != 0 || !(frame->header.id.call == call)) {
        kept.push_back(std::move(frame));
      } else {
        copied_bytes_ -= frame->own.size();
        bytes -= frame->bytes;
      }
    }
    unsent.swap(kept);
  }
  const auto detach = [&](const std::deque<Fragment>& fragments) {
    for (const Fragment& fragment : fragments) {
      if (fragment.frame) Detach(*fragment.frame, call);
    }
  };
  for (const Path& path : paths_) detach(path.under_way);
  for (const Waiting& waiting : waiting_) detach(waiting.lost);
}

void SendQueue::Detach(Frame& frame, const CallId& call) {
  if (!frame.message || !(frame.header.id.call == call)) return;
  copied_bytes_ += frame.bytes - frame.own.size();
  frame.own.reserve(frame.bytes);
  for (const ConstSpan& span : frame.message->spans) {
    frame.own.insert(frame.own.end(), span.data, span.data + span.bytes);
  }
  frame.message.reset();
}

std::vector<std::shared_ptr<Outgoing>> SendQueue::Clear() {
  std::vector<std::shared_ptr<Outgoing>> messages;
  const auto take = [&messages](const std::shared_ptr<Frame>& frame) {
    if (frame && frame->message) messages.push_back(std::move(frame->message));
  };
  for (Path& path : paths_) {
    while (!path.under_way.empty()) take(TakeOldest(path).frame);
  }
  for (Waiting& waiting : waiting_) {
    for (const std::shared_ptr<Frame>& frame : waiting.unsent) take(frame);
    for (const Fragment& fragment : waiting.lost) take(fragment.frame);
    waiting = Waiting();
  }
  for (std::set<uint64_t>& numbers : frames_) numbers.clear();
  copied_bytes_ = 0;
  return messages;
}

}  // namespace jaxcomm
