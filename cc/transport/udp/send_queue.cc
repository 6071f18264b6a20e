#include "cc/transport/udp/send_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

void SendQueue::Push(const Header& header, std::shared_ptr<Outgoing> message, uint32_t priority) {
  auto frame = std::make_shared<Frame>();
  frame->header = header;
  frame->bytes = frame->reliable = kHeaderBytes + header.bytes;
  frame->own.resize(kHeaderBytes);
  EncodeHeader(header, frame->own.data());
  frame->message = std::move(message);
  Add(std::move(frame), priority);
}

void SendQueue::PushCopy(const Header& header, const std::vector<ConstSpan>& payload, uint32_t priority) {
  auto frame = std::make_shared<Frame>();
  frame->header = header;
  frame->bytes = frame->reliable = kHeaderBytes + header.bytes;
  frame->own.reserve(frame->bytes);
  frame->own.resize(kHeaderBytes);
  EncodeHeader(header, frame->own.data());
  for (const ConstSpan& span : payload) frame->own.insert(frame->own.end(), span.data, span.data + span.bytes);
  Add(std::move(frame), priority);
}

void SendQueue::PushLossy(const MessageId& id, std::vector<bool> important, const LossLimit& limit,
                          std::shared_ptr<Outgoing> message, uint32_t priority) {
  auto frame = std::make_shared<Frame>();
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
  Add(std::move(frame), priority);
}

void SendQueue::Add(std::shared_ptr<Frame> frame, uint32_t priority) {
  frame->priority = std::min(priority, static_cast<uint32_t>(waiting_.size() - 1));
  Waiting& waiting = waiting_[frame->priority];
  copied_bytes_ += frame->own.size();
  waiting.bytes += frame->bytes;
  waiting.unsent.push_back(std::move(frame));
}

bool SendQueue::is_waiting() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const Waiting& waiting) { return waiting.has_frames(); });
}

int64_t SendQueue::waiting_bytes() const {
  int64_t bytes = 0;
  for (const Waiting& waiting : waiting_) bytes += waiting.bytes;
  return bytes;
}

// Returns the first priority of which a packet may be sent, or nullptr if there is none.
const SendQueue::Waiting* SendQueue::FindNext() const {
  for (const Waiting& waiting : waiting_) {
    if (!waiting.lost.empty() || (!waiting.unsent.empty() && MayBegin(*waiting.unsent.front()))) return &waiting;
  }
  return nullptr;
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
  return FindNext() != nullptr;
}

// Retransmitted packets count as important.
SendQueue::NextPacket SendQueue::PeekNext() const {
  const Waiting* const waiting = FindNext();
  if (waiting == nullptr) return {};
  const auto priority = static_cast<uint32_t>(waiting - waiting_.data());
  if (!waiting->lost.empty()) return {priority, /*is_important=*/true};
  const Frame& frame = *waiting->unsent.front();
  return {priority, !MayLose(frame, frame.sent)};
}

uint32_t SendQueue::LastPriority(size_t path) const {
  uint32_t last = 0;
  for (const Fragment& fragment : paths_[path].under_way) {
    if (!fragment.is_over) last = std::max(last, fragment.priority);
  }
  return last;
}

bool SendQueue::MayBegin(const Frame& frame) const {
  const size_t kind = KindOf(frame);
  return frame.sent > 0 || frames_[kind].empty() || next_frame_[kind] - *frames_[kind].begin() < kMaxFrames;
}

std::optional<PacketHeader> SendQueue::Next(int64_t now, std::byte* bytes, size_t* size, size_t number) {
  if (!has_next(number)) return std::nullopt;
  Path& path = paths_[number];
  Waiting& waiting = waiting_[static_cast<size_t>(FindNext() - waiting_.data())];
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
  fragment.priority = frame.priority;
  fragment.sent = now;
  fragment.is_unsent = false;
  if (frame.message != nullptr) {
    path.ends_message = true;
  } else if (waiting_.size() == 1 || fragment.priority >= LastPriority(number)) {  // the frame shows earlier losses
    path.ends_message = false;
  }
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
  const auto sent = static_cast<uint16_t>(SentWhole(number, frame.priority));
  return PacketHeader{kind, asks, path.oldest + path.under_way.size() - 1, frame.number, offset, frame.bytes, sent};
}

// Returns the number of messages that have been sent completely at least once, and have no droppable bytes in flight
// that a new packet of this path and priority may overtake.
uint64_t SendQueue::SentWhole(size_t path, uint32_t priority) const {
  uint64_t whole = next_frame_[0];
  for (const auto& [unsent, lost, bytes, owed] : waiting_) {
    const bool is_begun = !unsent.empty() && unsent.front()->sent > 0 && KindOf(*unsent.front()) == 0;
    if (is_begun) whole = std::min(whole, unsent.front()->number);
    for (const Fragment& fragment : lost) {
      if (!fragment.is_unsent) break;
      if (KindOf(*fragment.frame) == 0) whole = std::min(whole, fragment.frame->number);
    }
  }
  for (size_t other = 0; other < paths_.size(); ++other) {
    if (paths_[other].lossy_under_way == 0 || (other == path && waiting_.size() == 1)) continue;
    for (const Fragment& fragment : paths_[other].under_way) {
      if (!IsLeft(fragment) || !fragment.frame->is_lossy || (other == path && fragment.priority <= priority)) continue;
      whole = std::min(whole, fragment.frame->number);
    }
  }
  return whole;
}

// Adds a packet to those in flight on a path.
void SendQueue::Depart(Path& path, Fragment fragment) {
  ++path.packets_under_way;
  path.under_way_bytes += static_cast<int64_t>(Size(fragment));
  path.lossy_under_way += fragment.frame && fragment.frame->is_lossy;
  path.under_way.push_back(std::move(fragment));
}

// Takes a packet from those in flight on a path. Its place in Path::under_way stays.
SendQueue::Fragment SendQueue::Resolve(Path& path, Fragment& its) {
  Fragment fragment = std::move(its);
  its.frame = nullptr;
  if (std::exchange(its.is_over, true)) return fragment;
  --path.packets_under_way;
  path.under_way_bytes -= static_cast<int64_t>(Size(fragment));
  path.lossy_under_way -= fragment.frame && fragment.frame->is_lossy;
  return fragment;
}

SendQueue::Fragment SendQueue::TakeOldest(Path& path) {
  Fragment fragment = Resolve(path, path.under_way.front());
  path.under_way.pop_front();
  ++path.oldest;
  return fragment;
}

// Queues a packet for retransmission.
void SendQueue::Wait(Fragment fragment, bool is_first) {
  Waiting& waiting = waiting_[fragment.frame->priority];
  waiting.bytes += static_cast<int64_t>(Size(fragment));
  waiting.lost.insert(is_first ? waiting.lost.begin() : waiting.lost.end(), std::move(fragment));
}

// If nothing waits to be sent, marks all paths without packets in flight as paused.
void SendQueue::NotePauses() {
  if (is_waiting()) return;
  for (Path& path : paths_) path.has_paused |= path.packets_under_way == 0;
}

size_t SendQueue::Size(const Frame& frame, uint32_t offset) const {
  return std::min<size_t>(fragment_, frame.bytes - offset);
}

size_t SendQueue::Size(const Fragment& fragment) const {
  return fragment.frame ? Size(*fragment.frame, fragment.offset) : 0;
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

std::optional<uint32_t> SendQueue::OwedProbe() const {
  for (uint32_t priority = 0; priority < waiting_.size() && !waiting_[priority].has_frames(); ++priority) {
    const uint64_t owed = waiting_[priority].owed;
    if (owed > 0 && SentWhole(kNoPath, priority) >= owed) return priority;
  }
  return std::nullopt;
}

PacketHeader SendQueue::Probe(int64_t now, size_t number, uint32_t priority) {
  Path& path = paths_[number];
  while (path.under_way.size() + 1 >= kAnsweredPackets) {  // the oldest packet would not fit into an acknowledgement
    Fragment oldest = TakeOldest(path);
    if (IsLeft(oldest)) Wait(std::move(oldest), /*is_first=*/false);
  }
  Fragment probe;
  probe.priority = priority;
  probe.sent = now;
  const uint64_t sent = SentWhole(number, priority);
  if (priority >= LastPriority(number)) path.ends_message = false;
  Depart(path, std::move(probe));
  for (Waiting& waiting : waiting_) {
    if (sent >= waiting.owed) waiting.owed = 0;
  }
  const uint64_t newest = path.oldest + path.under_way.size() - 1;
  return {PacketKind::kProbe, /*asks=*/true, newest, 0, 0, 0, static_cast<uint16_t>(sent)};
}

void SendQueue::Unsend(size_t count, size_t number) {
  Path& path = paths_[number];
  for (; count > 0 && !path.under_way.empty(); --count) {  // stops early if packets were acknowledged meanwhile
    Fragment newest = Resolve(path, path.under_way.back());
    path.under_way.pop_back();
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
  const size_t count = answer.frame < path.oldest ? 0 : static_cast<size_t>(answer.frame - path.oldest) + 1;
  if (count > 0) answered.sent = path.under_way[count - 1].sent;
  const auto has_arrived = [&](size_t i) {
    const uint64_t bit = count - 1 - i;
    return bit < kAnsweredPackets && (bits[bit / 8] & static_cast<std::byte>(1 << (bit % 8))) != std::byte{0};
  };
  for (size_t i = 0; i < count; ++i) {  // the newest packet has arrived even if the receiver had no room for it
    const Fragment& fragment = path.under_way[i];
    if (!fragment.is_over && (i + 1 == count || has_arrived(i))) path.arrived[fragment.priority] = path.oldest + i + 1;
  }
  for (size_t i = 0; i < count; ++i) {
    if (path.under_way[i].is_over) continue;
    const bool has_come = has_arrived(i);
    const bool is_overtaken =
        count - 1 - i >= kMostOvertaking || IsOvertaken(path, path.oldest + i, path.under_way[i].priority);
    if (!has_come && !is_overtaken) continue;  // may still arrive
    Fragment fragment = Resolve(path, path.under_way[i]);
    const size_t size = Size(fragment);
    ++answered.packets;
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
  while (!path.under_way.empty() && path.under_way.front().is_over) TakeOldest(path);
  EndBefore(LoadNumber<uint64_t>(bits + kAnsweredPackets / 8), done);
  NotePauses();
  return answered;
}

// Returns whether a packet of the same or a later priority has arrived that was not sent before packet `number`.
bool SendQueue::IsOvertaken(const Path& path, uint64_t number, uint32_t priority) {
  return std::any_of(path.arrived.begin() + priority, path.arrived.end(),
                     [number](uint64_t arrived) { return arrived > number; });
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
  const Frame& frame = *fragment.frame;
  if (frame.has_time_limit || !MayLose(frame, fragment.offset) || IsHeldUp(frame)) return false;
  fragment.frame->may_lose -= static_cast<uint32_t>(Size(fragment));
  fragment.frame->has_lost = true;
  Come(*fragment.frame, done);
  return true;
}

// Returns whether bytes of an earlier message with a later priority wait to be sent, or are in flight and may get lost.
// The receiver would give up the frame's lost bytes only after those bytes.
bool SendQueue::IsHeldUp(const Frame& frame) const {
  if (frame.priority + 1 == waiting_.size()) return false;
  const auto holds_up = [&frame](const Frame& other) {
    return KindOf(other) == 0 && other.priority > frame.priority && other.number < frame.number;
  };
  const auto is_partly_sent = [&](const Waiting& waiting) {
    return !waiting.unsent.empty() && waiting.unsent.front()->sent > 0 && holds_up(*waiting.unsent.front());
  };
  const auto is_in_flight = [&](const Path& path) {
    return path.lossy_under_way > 0 &&
           std::any_of(path.under_way.begin(), path.under_way.end(), [&](const Fragment& fragment) {
             return IsLeft(fragment) && fragment.frame->is_lossy && holds_up(*fragment.frame);
           });
  };
  return std::any_of(waiting_.begin(), waiting_.end(), is_partly_sent) ||
         std::any_of(paths_.begin(), paths_.end(), is_in_flight);
}

bool SendQueue::MayLose(const Frame& frame, uint32_t offset) const {
  return offset >= frame.reliable && Size(frame, offset) <= frame.may_lose;
}

void SendQueue::Come(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done) {
  if (!frame.is_over && --frame.missing == 0) End(frame, done);
}

void SendQueue::End(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done) {
  frame.is_over = true;
  if (frame.has_lost && (paths_.size() > 1 || waiting_.size() > 1)) {
    uint64_t& owed = waiting_[frame.priority].owed;
    owed = std::max(owed, frame.number + 1);
  }
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
  for (auto& [unsent, lost, bytes, owed] : waiting_) {
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
  for (auto& [unsent, lost, bytes, owed] : waiting_) {
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
