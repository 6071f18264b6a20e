#include "cc/transport/udp/send_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/transport/spans.h"

namespace jaxcomm {

void SendQueue::Push(const Header& header, std::shared_ptr<Outgoing> message) {
  PushCopy(header, {});
  unsent_.back()->message = std::move(message);
}

void SendQueue::PushCopy(const Header& header, const std::vector<ConstSpan>& payload) {
  auto frame = std::make_shared<Frame>();
  frame->header = header;
  frame->bytes = frame->reliable = kHeaderBytes + header.bytes;
  frame->own.reserve(payload.empty() ? kHeaderBytes : frame->bytes);
  frame->own.resize(kHeaderBytes);
  EncodeHeader(header, frame->own.data());
  for (const ConstSpan& span : payload) frame->own.insert(frame->own.end(), span.data, span.data + span.bytes);
  copied_bytes_ += frame->own.size();
  unsent_.push_back(std::move(frame));
}

void SendQueue::PushLossy(const MessageId& id, std::vector<bool> important, const LossLimit& limit,
                          std::shared_ptr<Outgoing> message) {
  auto frame = std::make_shared<Frame>();
  const size_t front = LossyFrontBytes(important.size());
  frame->reliable = frame->bytes = static_cast<uint32_t>(front);
  frame->may_lose = static_cast<uint32_t>(limit.bytes);
  frame->has_bound = limit.bound.has_value();
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
  copied_bytes_ += frame->own.size();
  unsent_.push_back(std::move(frame));
}

bool SendQueue::has_next() const {
  if (under_way_.size() + 1 >= kAnsweredPackets) return false;
  if (under_way_bytes_ > 0 && under_way_bytes_ + static_cast<int64_t>(fragment_) > window_) return false;
  return !lost_.empty() || (!unsent_.empty() && MayBegin(*unsent_.front()));
}

// Packets that are sent again count as important.
bool SendQueue::IsNextImportant() const {
  return !lost_.empty() || unsent_.empty() || !MayLose({unsent_.front(), unsent_.front()->sent});
}

bool SendQueue::MayBegin(const Frame& frame) const {
  const size_t kind = KindOf(frame);
  return frame.sent > 0 || frames_[kind].empty() || next_frame_[kind] - *frames_[kind].begin() < kMaxFrames;
}

std::optional<PacketHeader> SendQueue::Next(int64_t now, std::byte* bytes, size_t* size) {
  if (!has_next()) return std::nullopt;
  Fragment fragment;
  if (!lost_.empty()) {
    fragment = std::move(lost_.front());
    lost_.pop_front();
  } else {
    fragment.frame = unsent_.front();
    Frame& frame = *fragment.frame;
    if (frame.sent == 0) {
      frame.number = next_frame_[KindOf(frame)]++;
      frame.missing = static_cast<uint32_t>((frame.bytes + fragment_ - 1) / fragment_);
      frames_[KindOf(frame)].insert(frame.number);
    }
    fragment.offset = frame.sent;
    frame.sent += static_cast<uint32_t>(Size(fragment));
    if (frame.sent == frame.bytes) unsent_.pop_front();
  }
  Frame& frame = *fragment.frame;
  *size = Size(fragment);
  Read(frame, fragment.offset, *size, bytes);
  fragment.sent = now;
  fragment.is_unsent = false;
  ends_message_ = frame.message != nullptr;
  has_paused_ = false;
  const uint64_t number = oldest_ + under_way_.size();
  const PacketKind kind = frame.is_lossy       ? PacketKind::kLossy
                          : KindOf(frame) == 0 ? PacketKind::kMessage
                                               : PacketKind::kOrdered;
  const uint32_t offset = fragment.offset;
  under_way_bytes_ += static_cast<int64_t>(*size);
  under_way_.push_back(std::move(fragment));
  // Requests an acknowledgement only if a caller waits for it: in the last packet of a message that was not copied.
  const bool asks = frame.message != nullptr && !has_next();
  return PacketHeader{kind, asks, number, frame.number, offset, frame.bytes, SentWhole()};
}

// Returns the number of messages that have been sent completely at least once, modulo 2^16.
uint16_t SendQueue::SentWhole() const {
  for (const Fragment& fragment : lost_) {
    if (!fragment.is_unsent) break;
    if (KindOf(*fragment.frame) == 0) return static_cast<uint16_t>(fragment.frame->number);
  }
  const bool is_begun = !unsent_.empty() && unsent_.front()->sent > 0 && KindOf(*unsent_.front()) == 0;
  return static_cast<uint16_t>(is_begun ? unsent_.front()->number : next_frame_[0]);
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

PacketHeader SendQueue::Probe(int64_t now) {
  while (under_way_.size() + 1 >= kAnsweredPackets) {  // the oldest packet would not fit into an acknowledgement
    under_way_bytes_ -= static_cast<int64_t>(Size(under_way_.front()));
    if (IsLeft(under_way_.front())) lost_.push_back(std::move(under_way_.front()));
    under_way_.pop_front();
    ++oldest_;
  }
  under_way_.push_back({nullptr, 0, now});
  ends_message_ = false;
  return {PacketKind::kProbe, /*asks=*/true, oldest_ + under_way_.size() - 1, 0, 0, 0, SentWhole()};
}

void SendQueue::Unsend(size_t count) {
  for (; count > 0 && !under_way_.empty(); --count) {  // stops early if packets were acknowledged meanwhile
    under_way_bytes_ -= static_cast<int64_t>(Size(under_way_.back()));
    if (IsLeft(under_way_.back())) {
      lost_.push_front(std::move(under_way_.back()));
      lost_.front().is_unsent = true;
    }
    under_way_.pop_back();
  }
}

Result<Answered> SendQueue::Take(const PacketHeader& answer, const std::byte* bits,
                                 std::vector<std::shared_ptr<Outgoing>>* done) {
  if (answer.frame >= oldest_ + under_way_.size()) {
    return InvalidArgument("an answer to packet " + std::to_string(answer.frame) + ", which was never sent to it");
  }
  Answered answered;
  if (answer.number <= newest_answer_) return answered;
  newest_answer_ = answer.number;
  for (; oldest_ <= answer.frame && !under_way_.empty(); ++oldest_) {
    Fragment fragment = std::move(under_way_.front());
    under_way_.pop_front();
    const uint64_t bit = answer.frame - oldest_;
    const size_t size = Size(fragment);
    const bool has_come =
        bit < kAnsweredPackets && (bits[bit / 8] & static_cast<std::byte>(1 << (bit % 8))) != std::byte{0};
    under_way_bytes_ -= static_cast<int64_t>(size);
    ++answered.packets;
    if (bit == 0) answered.sent = fragment.sent;
    if (!has_come) ++answered.lost;
    if (!fragment.frame) continue;
    if (has_come) {
      answered.bytes += static_cast<int64_t>(size);
      answered.longest_come = std::max(answered.longest_come, size);
      Come(*fragment.frame, done);
    } else if (fragment.frame->is_over) {
      continue;
    } else if (!answer.asks && !fragment.frame->has_bound && MayLose(fragment)) {  // `asks`: there may be no room
      fragment.frame->may_lose -= static_cast<uint32_t>(size);
      Come(*fragment.frame, done);
    } else {
      if (!answer.asks && ++fragment.losses >= kOftenLost) {
        answered.often_lost = answered.often_lost == 0 ? size : std::min(answered.often_lost, size);
      }
      lost_.push_back(std::move(fragment));
    }
  }
  EndBefore(answer.sent, done);
  has_paused_ |= under_way_.empty() && lost_.empty() && unsent_.empty();
  return answered;
}

bool SendQueue::MayLose(const Fragment& fragment) const {
  return fragment.offset >= fragment.frame->reliable && Size(fragment) <= fragment.frame->may_lose;
}

void SendQueue::Come(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done) {
  if (!frame.is_over && --frame.missing == 0) End(frame, done);
}

void SendQueue::End(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done) {
  frame.is_over = true;
  frames_[KindOf(frame)].erase(frame.number);
  copied_bytes_ -= frame.own.size();
  if (frame.message) done->push_back(std::move(frame.message));
}

// Ends the messages that the receiver has finished, which may lack bytes. Their numbers are below `number`, which is
// modulo 2^16.
void SendQueue::EndBefore(uint16_t number, std::vector<std::shared_ptr<Outgoing>>* done) {
  if (frames_[0].empty()) return;
  const uint64_t oldest = *frames_[0].begin();
  const uint64_t end = oldest + static_cast<uint16_t>(number - static_cast<uint16_t>(oldest));
  if (end == oldest || end > next_frame_[0]) return;
  const auto is_finished = [end](const std::shared_ptr<Frame>& frame) {
    return frame && KindOf(*frame) == 0 && frame->sent > 0 && frame->number < end;
  };
  std::vector<std::shared_ptr<Frame>> finished;
  for (const std::deque<Fragment>* const fragments : {&under_way_, &lost_}) {
    for (const Fragment& fragment : *fragments) {
      if (is_finished(fragment.frame)) finished.push_back(fragment.frame);
    }
  }
  lost_.erase(std::remove_if(lost_.begin(), lost_.end(), [&](const Fragment& it) { return is_finished(it.frame); }),
              lost_.end());
  if (!unsent_.empty() && is_finished(unsent_.front())) {
    finished.push_back(std::move(unsent_.front()));
    unsent_.pop_front();
  }
  for (const std::shared_ptr<Frame>& frame : finished) {
    if (!frame->is_over) End(*frame, done);
  }
}

void SendQueue::Cancel(const CallId& call) {
  std::deque<std::shared_ptr<Frame>> kept;
  for (std::shared_ptr<Frame>& frame : unsent_) {
    const bool is_begun = frame->sent > 0;
    if (is_begun) Detach(*frame, call);
    if (is_begun || KindOf(*frame) != 0 || !(frame->header.id.call == call)) {
      kept.push_back(std::move(frame));
    } else {
      copied_bytes_ -= frame->own.size();
    }
  }
  unsent_.swap(kept);
  for (const std::deque<Fragment>* const fragments : {&under_way_, &lost_}) {
    for (const Fragment& fragment : *fragments) {
      if (fragment.frame) Detach(*fragment.frame, call);
    }
  }
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
  std::vector<std::shared_ptr<Outgoing>> lost;
  const auto take = [&lost](const std::shared_ptr<Frame>& frame) {
    if (frame && frame->message) lost.push_back(std::move(frame->message));
  };
  for (const std::shared_ptr<Frame>& frame : unsent_) take(frame);
  for (const Fragment& fragment : under_way_) take(fragment.frame);
  for (const Fragment& fragment : lost_) take(fragment.frame);
  unsent_.clear();
  under_way_.clear();
  lost_.clear();
  for (std::set<uint64_t>& numbers : frames_) numbers.clear();
  under_way_bytes_ = 0;
  copied_bytes_ = 0;
  return lost;
}

}  // namespace jaxcomm
