#include "cc/transport/udp/assembler.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

Status Assembler::Take(const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived,
                       size_t number) {
  if (Status status = Check(header, size); !status.ok()) return status;
  Path& path = paths_[number];
  if (!path.window.IsNew(header.number)) {
    ++duplicates_;
    return Status();
  }
  path.window.See(header.number);
  if (header.number == path.window.newest()) path.newest_arrived = arrived;
  newest_path_ = number;
  ++path.unanswered;
  path.is_asked |= header.asks;
  bool is_taken = true;
  if (header.kind != PacketKind::kProbe) {
    const Result<bool> taken = TakeFragment(header, bytes, size);
    if (!taken.ok()) return taken.status();
    is_taken = taken.value();
  }
  if (is_taken) path.window.Take(header.number);
  See(header.sent);
  return Status();
}

// Finishes each lossy message that the process has now sent completely, if enough of the message has arrived.
void Assembler::See(uint16_t sent) {
  const uint64_t now = messages_.oldest + static_cast<uint16_t>(sent - static_cast<uint16_t>(messages_.oldest));
  // If the packet was sent when fewer than messages_.oldest messages were complete, `now` is beyond the upper limit.
  if (now <= messages_.sent || now > messages_.oldest + kMaxFrames) return;
  auto at = messages_.arrivals.lower_bound(messages_.sent);
  messages_.sent = now;
  while (at != messages_.arrivals.end() && at->first < now) {
    const auto next = std::next(at);
    if (IsOver(at->first, at->second)) Finish(at->first);
    at = next;
  }
}

bool Assembler::IsOver(uint64_t frame, const Arrival& arrival) const {
  if (arrival.missing > 0 || arrival.missing_bytes > arrival.may_lose) return false;
  if (arrival.missing_bytes == 0) return true;
  if (!arrival.until) return frame < messages_.sent;
  if (std::chrono::steady_clock::now() < *arrival.until) return false;
  int64_t broken = 0;
  for (const Span& span : BrokenSpans(arrival)) broken += span.bytes;
  return broken <= arrival.may_lose;
}

// Returns the spans of a message that lack bytes.
std::vector<Span> Assembler::BrokenSpans(const Arrival& arrival) const {
  std::vector<Span> broken;
  size_t at = arrival.front;
  for (const Span& span : arrival.message->spans) {
    const size_t end = at + static_cast<size_t>(span.bytes);
    for (size_t fragment = at / fragment_; fragment * fragment_ < end; ++fragment) {
      if (arrival.has[fragment]) continue;
      broken.push_back(span);
      break;
    }
    at = end;
  }
  return broken;
}

std::optional<LossLimit::TimePoint> Assembler::NextTimeLimit() const {
  std::optional<LossLimit::TimePoint> next;
  if (!has_time_limits_) return next;
  for (const auto& [number, arrival] : messages_.arrivals) {
    if (arrival.until && !arrival.is_expired && (!next || *arrival.until < *next)) next = arrival.until;
  }
  return next;
}

void Assembler::Expire(LossLimit::TimePoint now) {
  std::vector<uint64_t> over;
  has_time_limits_ = false;
  for (auto& [number, arrival] : messages_.arrivals) {
    if (!arrival.until || arrival.is_expired) continue;
    arrival.is_expired = *arrival.until <= now;
    if (!arrival.is_expired) {
      has_time_limits_ = true;
    } else if (IsOver(number, arrival)) {
      over.push_back(number);
    }
  }
  for (const uint64_t number : over) Finish(number);
  if (!over.empty()) Ask();
}

Status Assembler::Check(const PacketHeader& header, size_t size) const {
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument("a packet with " + std::to_string(size) + " bytes at offset " +
                           std::to_string(header.offset) + " of a frame of " + std::to_string(header.bytes) + " bytes" +
                           what);
  };
  if (header.kind == PacketKind::kProbe) return size == 0 && header.bytes == 0 ? Status() : wrong(", sent as a probe");
  const bool is_message = header.kind != PacketKind::kOrdered;
  const size_t front = header.kind == PacketKind::kLossy ? fragment_ : kHeaderBytes;
  const size_t most = front + (is_message ? static_cast<size_t>(Transport::kMaxMessage) : Transport::kMaxNotice);
  if (header.bytes < kHeaderBytes || header.bytes > most) {
    return wrong("; frames have " + std::to_string(kHeaderBytes) + " to " + std::to_string(most));
  }
  if (header.offset % fragment_ != 0 || header.offset >= header.bytes ||
      size != std::min<size_t>(fragment_, header.bytes - header.offset)) {
    return wrong("; its fragments have " + std::to_string(fragment_));
  }
  const Stream& stream = is_message ? messages_ : ordered_;
  if (header.frame >= stream.oldest + kMaxFrames) return wrong(", too far ahead of the oldest incomplete frame");
  return Status();
}

// Returns whether the packet was taken. If not, the sending process must retransmit the packet.
Result<bool> Assembler::TakeFragment(const PacketHeader& header, const std::byte* bytes, size_t size) {
  Stream& stream = header.kind == PacketKind::kOrdered ? ordered_ : messages_;
  if (header.frame < stream.oldest || stream.whole.count(header.frame)) return true;
  Arrival& arrival = stream.arrivals[header.frame];
  if (arrival.bytes == 0) {
    arrival.bytes = arrival.reliable = header.bytes;
    arrival.missing_bytes = header.bytes;
    arrival.missing = (header.bytes + fragment_ - 1) / fragment_;
    arrival.has.resize(arrival.missing);
    arrival.is_lossy = header.kind == PacketKind::kLossy;
  }
  if (arrival.bytes != header.bytes || arrival.is_lossy != (header.kind == PacketKind::kLossy)) {
    return InvalidArgument("a frame that changed its size or its kind");
  }
  const size_t fragment = header.offset / fragment_;
  if (arrival.has[fragment]) return true;
  if (header.kind != PacketKind::kOrdered && fragment == 0) {
    const Result<bool> named = Name(header, bytes, size, arrival);
    if (!named.ok() || !named.value()) return named;
  } else if (!arrival.message && !Keep(header, arrival)) {
    return false;
  }
  Place(arrival, header.offset, bytes, size);
  arrival.has[fragment] = true;
  arrival.missing_bytes -= static_cast<int64_t>(size);
  if (header.offset < arrival.reliable) --arrival.missing;
  if (!IsOver(header.frame, arrival)) return true;
  if (header.kind != PacketKind::kOrdered) {
    Finish(header.frame);
  } else if (Status status = DeliverOrdered(); !status.ok()) {
    return status;
  }
  return true;
}

// Reads the message id from the first fragment, and moves kept bytes to the message's spans. Returns false if the inbox
// has no room for the message.
Result<bool> Assembler::Name(const PacketHeader& header, const std::byte* bytes, size_t size, Arrival& arrival) {
  const Result<Header> frame = DecodeHeader(bytes);
  if (!frame.ok()) return frame.status();
  const bool is_whole = arrival.is_lossy || kHeaderBytes + frame.value().bytes == header.bytes;
  if (frame.value().type != FrameType::kMessage || !is_whole) {
    return InvalidArgument("a message frame whose type or size does not match its packets");
  }
  if (arrival.is_lossy) {
    if (Status status = BeginLossy(frame.value(), bytes, size, arrival); !status.ok()) return status;
  } else {
    Result<std::optional<Incoming>> begun = inbox_->Begin(process_, frame.value().id, frame.value().bytes);
    if (!begun.ok()) return begun.status();
    if (!begun.value()) {
      waits_ = true;
      return false;
    }
    arrival.message = std::move(*begun.value());
  }
  if (const std::unique_ptr<std::byte[]> kept = std::move(arrival.kept)) {
    kept_ -= arrival.bytes;
    for (size_t fragment = 1; fragment < arrival.has.size(); ++fragment) {
      const size_t offset = fragment * fragment_;
      if (arrival.has[fragment]) {
        Place(arrival, static_cast<uint32_t>(offset), kept.get() + offset, std::min(fragment_, arrival.bytes - offset));
      }
    }
  }
  return true;
}

// Reads the first packet of a lossy message. Besides the message id, the packet holds the number of reliable bytes, and
// says which spans are important.
Status Assembler::BeginLossy(const Header& frame, const std::byte* bytes, size_t size, Arrival& arrival) {
  const Result<Lossy> lossy = DecodeLossy(bytes, size, arrival.bytes);
  if (!lossy.ok()) return lossy.status();
  const std::vector<bool>& important = lossy.value().important;
  arrival.front = static_cast<uint32_t>(LossyFrontBytes(important.size()));
  if (arrival.front + frame.bytes != arrival.bytes) {
    return InvalidArgument("a lossy message frame whose size does not match its packets");
  }
  Result<Incoming> begun = inbox_->BeginLossy(process_, frame.id, frame.bytes, lossy.value().may_lose);
  if (!begun.ok()) return begun.status();
  arrival.message = std::move(begun.value());
  arrival.reliable = lossy.value().reliable;
  arrival.may_lose = lossy.value().may_lose;
  for (size_t fragment = (arrival.reliable + fragment_ - 1) / fragment_; fragment < arrival.has.size(); ++fragment) {
    if (!arrival.has[fragment]) --arrival.missing;
  }
  std::vector<Span>& spans = arrival.message->spans;
  if (!arrival.message->posted) return Status();
  arrival.until = arrival.message->posted->loss->limit.until;
  has_time_limits_ |= arrival.until.has_value();
  int64_t first = 0;
  for (size_t i = 0; i < std::min(spans.size(), important.size()); ++i) first += important[i] ? spans[i].bytes : 0;
  if (spans.size() != important.size() || arrival.front + first != arrival.reliable) {
    return InvalidArgument("a lossy message whose spans are not the expected ones");
  }
  spans = ImportantFirst(spans, important);
  return Status();
}

// Zeroes the missing bytes and lists them as lost. If the message has a time limit, spans that lack bytes are zeroed
// and listed as a whole.
void Assembler::Lose(Arrival& arrival) {
  if (!arrival.message->posted) return;
  std::vector<ByteRange>& lost = arrival.message->posted->loss->lost;
  const auto lose = [&lost](std::byte* data, int64_t bytes, int64_t at) {
    std::memset(data, 0, static_cast<size_t>(bytes));
    lost.push_back({at, at + bytes});
  };
  if (arrival.until) {
    for (const Span& span : BrokenSpans(arrival)) lose(span.data, span.bytes, span.at);
  } else {
    for (size_t fragment = 0; fragment < arrival.has.size(); ++fragment) {
      if (arrival.has[fragment]) continue;
      const size_t offset = fragment * fragment_;
      VisitPacked(arrival.message->spans, static_cast<int64_t>(offset - arrival.front),
                  static_cast<int64_t>(std::min<size_t>(fragment_, arrival.bytes - offset)), &arrival.cursor, lose);
    }
  }
  std::sort(lost.begin(), lost.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
}

// Allocates memory for the kept bytes of a frame. Returns false if there is no room. The next notice in order always
// finds room, because later notices wait for it.
bool Assembler::Keep(const PacketHeader& header, Arrival& arrival) {
  if (arrival.kept) return true;
  const bool is_next = header.kind == PacketKind::kOrdered && header.frame == ordered_.oldest;
  if (!is_next && kept_ + arrival.bytes > kMaxKept) return false;
  kept_ += arrival.bytes;
  arrival.kept.reset(new std::byte[arrival.bytes]);  // without zeroing the bytes
  return true;
}

void Assembler::Place(Arrival& arrival, uint32_t offset, const std::byte* bytes, size_t size) {
  if (!arrival.message) {
    std::memcpy(arrival.kept.get() + offset, bytes, size);
    return;
  }
  const size_t skipped = offset == 0 ? arrival.front : 0;
  bytes += skipped;
  VisitPacked(arrival.message->spans, static_cast<int64_t>(offset + skipped - arrival.front),
              static_cast<int64_t>(size - skipped), &arrival.cursor, [&bytes](std::byte* data, int64_t part, int64_t) {
                CopyBytes(data, bytes, part);
                bytes += part;
              });
}

void Assembler::Finish(uint64_t frame) {
  const auto found = messages_.arrivals.find(frame);
  if (found->second.missing_bytes > 0) Lose(found->second);
  inbox_->End(std::move(*found->second.message));
  messages_.arrivals.erase(found);
  messages_.whole.insert(frame);
  while (messages_.whole.erase(messages_.oldest) > 0) ++messages_.oldest;
}

Status Assembler::DeliverOrdered() {
  while (!ordered_.arrivals.empty() && !at_end_) {
    const auto& [number, arrival] = *ordered_.arrivals.begin();
    if (number != ordered_.oldest || arrival.missing > 0) break;
    const Result<Header> frame = DecodeHeader(arrival.kept.get());
    if (!frame.ok()) return frame.status();
    const size_t bytes = frame.value().bytes;
    if (frame.value().type == FrameType::kMessage || kHeaderBytes + bytes != arrival.bytes) {
      return InvalidArgument("a notice frame whose type or size does not match its packets");
    }
    at_end_ = frame.value().type == FrameType::kGoodbye;
    if (!at_end_) {
      inbox_->Notice(process_, {reinterpret_cast<const char*>(arrival.kept.get() + kHeaderBytes), bytes});
    }
    kept_ -= arrival.bytes;
    ordered_.arrivals.erase(ordered_.arrivals.begin());
    ++ordered_.oldest;
  }
  return Status();
}

void Assembler::Answer(int64_t now, PacketHeader* header, std::byte (&bits)[kAnswerBytes], size_t number) {
  Path& path = paths_[number];
  const int64_t since = std::clamp<int64_t>(now - path.newest_arrived, 0, UINT32_MAX);
  *header = {PacketKind::kAnswer,
             waits_,
             ++answers_,
             path.window.newest(),
             static_cast<uint32_t>(since),
             static_cast<uint32_t>(path.newest_arrived / 1000),
             static_cast<uint16_t>(number)};
  path.window.Bits(bits);
  StoreNumber<uint64_t>(messages_.oldest, bits + kAnsweredPackets / 8);
  path.unanswered = 0;
  path.is_asked = false;
}

size_t Assembler::Resume() {
  waits_ = false;
  return Ask();
}

// Makes an acknowledgement due at once. Returns its path.
size_t Assembler::Ask() {
  paths_[newest_path_].is_asked = true;
  ++paths_[newest_path_].unanswered;
  return newest_path_;
}

void Assembler::Cancel(const CallId& call) {
  for (auto& [number, arrival] : messages_.arrivals) {
    if (!arrival.message || !(arrival.message->id.call == call)) continue;
    arrival.message->spans.clear();
    arrival.message->posted.reset();
    arrival.message->early.reset();
    arrival.until.reset();
    arrival.cursor = PackedCursor();
  }
}

std::vector<Incoming> Assembler::TakeArrivals() {
  std::vector<Incoming> taken;
  for (auto& [number, arrival] : messages_.arrivals) {
    if (arrival.message) taken.push_back(std::move(*arrival.message));
  }
  messages_.arrivals.clear();
  ordered_.arrivals.clear();
  kept_ = 0;
  return taken;
}

}  // namespace jaxcomm
