#include "cc/transport/tcp/outbox.h"

#include <algorithm>
#include <utility>

namespace jaxcomm {

void Outbox::Push(const Header& header, std::shared_ptr<Outgoing> message) {
  std::vector<std::byte> own(kHeaderBytes);
  EncodeHeader(header, own.data());
  copied_bytes_ += own.size();
  frames_.push_back({header, std::move(own), std::move(message), kHeaderBytes + header.bytes});
}

void Outbox::PushCopy(const Header& header, const std::vector<ConstSpan>& payload) {
  std::vector<std::byte> own;
  own.reserve(kHeaderBytes + header.bytes);
  own.resize(kHeaderBytes);
  EncodeHeader(header, own.data());
  for (const ConstSpan& span : payload) own.insert(own.end(), span.data, span.data + span.bytes);
  copied_bytes_ += own.size();
  frames_.push_back({header, std::move(own), nullptr, kHeaderBytes + header.bytes});
}

size_t Outbox::Gather(iovec (&vectors)[kMaxVectors], size_t* bytes) const {
  size_t count = 0, skip = sent_;
  *bytes = 0;
  const auto add = [&](const std::byte* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped) return true;
    if (count == kMaxVectors || *bytes >= kMaxBytes) return false;
    vectors[count++] = {const_cast<std::byte*>(data + skipped), size - skipped};  // sendmsg only reads
    *bytes += size - skipped;
    return true;
  };
  for (const Frame& frame : frames_) {
    if (!add(frame.own.data(), frame.own.size())) return count;
    if (!frame.message) continue;
    for (const ConstSpan& span : frame.message->spans) {
      if (!add(span.data, static_cast<size_t>(span.bytes))) return count;
    }
  }
  return count;
}

void Outbox::Advance(size_t bytes, std::vector<std::shared_ptr<Outgoing>>* left) {
  sent_ += bytes;
  while (!frames_.empty() && sent_ >= frames_.front().bytes) {
    Frame& frame = frames_.front();
    sent_ -= frame.bytes;
    copied_bytes_ -= frame.own.size();
    if (frame.message) left->push_back(std::move(frame.message));
    frames_.pop_front();
  }
}

void Outbox::Cancel(const CallId& call) {
  std::deque<Frame> kept;
  for (Frame& frame : frames_) {
    const bool is_first = &frame == &frames_.front();
    const bool is_cancelled = frame.header.type == FrameType::kMessage && frame.header.id.call == call;
    if (is_cancelled && !(is_first && sent_ > 0)) {
      copied_bytes_ -= frame.own.size();
      continue;
    }
    if (is_cancelled && frame.message) {
      copied_bytes_ += frame.header.bytes;
      frame.own.reserve(frame.bytes);
      for (const ConstSpan& span : frame.message->spans) {
        frame.own.insert(frame.own.end(), span.data, span.data + span.bytes);
      }
      frame.message.reset();
    }
    kept.push_back(std::move(frame));
  }
  frames_.swap(kept);
}

std::vector<std::shared_ptr<Outgoing>> Outbox::Clear() {
  std::vector<std::shared_ptr<Outgoing>> lost;
  for (Frame& frame : frames_) {
    if (frame.message) lost.push_back(std::move(frame.message));
  }
  frames_.clear();
  sent_ = 0;
  copied_bytes_ = 0;
  return lost;
}

}  // namespace jaxcomm
