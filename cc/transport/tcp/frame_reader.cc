#include "cc/transport/tcp/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace jaxcomm {

size_t FrameReader::Gather(iovec (&vectors)[kMaxVectors]) {
  if (begin_ > 0) {  // moves the unread bytes: usually none, at most a header and a notice
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  size_t count = 0;
  size_t ahead = buffer_.size() - end_;
  if (state_ == State::kMessage && !arrival_->spans.empty()) {
    int64_t offset = offset_;
    for (size_t i = span_; i < arrival_->spans.size(); ++i, offset = 0) {
      const Span& span = arrival_->spans[i];
      if (span.bytes == offset) continue;
      if (count == kMaxVectors) return count;
      vectors[count++] = {span.data + offset, static_cast<size_t>(span.bytes - offset)};
    }
    if (count == kMaxVectors) return count;
    ahead = std::min(ahead, kAhead);
  }
  vectors[count++] = {buffer_.data() + end_, ahead};
  return count;
}

Status FrameReader::Take(size_t bytes) {
  if (state_ == State::kMessage && !arrival_->spans.empty()) {
    const int64_t direct = std::min(missing_, static_cast<int64_t>(bytes));
    Skip(direct);
    bytes -= static_cast<size_t>(direct);
  }
  end_ += bytes;
  return Parse();
}

void FrameReader::Cancel(const CallId& call) {
  if (state_ != State::kMessage || !(arrival_->id.call == call)) return;
  arrival_->spans.clear();
  arrival_->posted.reset();
  arrival_->early.reset();
}

std::optional<Incoming> FrameReader::TakeArrival() {
  state_ = State::kEnd;
  return std::exchange(arrival_, std::nullopt);
}

void FrameReader::Restart() {
  begin_ = end_ = 0;
  state_ = State::kHeader;
  arrival_.reset();
  missing_ = 0;
}

Status FrameReader::Parse() {
  for (;;) {
    switch (state_) {
      case State::kHeader: {
        if (buffered() < kHeaderBytes) return Status();
        Result<Header> header = DecodeHeader(buffer_.data() + begin_);
        if (!header.ok()) return header.status();
        header_ = header.value();
        begin_ += kHeaderBytes;
        state_ = header_.type == FrameType::kMessage  ? State::kAdmission
                 : header_.type == FrameType::kNotice ? State::kNotice
                                                      : State::kEnd;
        break;
      }
      case State::kNotice:
        if (buffered() < header_.bytes) return Status();
        inbox_->Notice(process_,
                       std::string_view(reinterpret_cast<const char*>(buffer_.data() + begin_), header_.bytes));
        begin_ += header_.bytes;
        state_ = State::kHeader;
        break;
      case State::kAdmission: {
        Result<std::optional<Incoming>> arrival = inbox_->Begin(process_, header_.id, header_.bytes);
        if (!arrival.ok()) return arrival.status();
        if (!arrival.value()) return Status();
        arrival_ = std::move(arrival.value());
        missing_ = header_.bytes;
        span_ = 0;
        offset_ = 0;
        state_ = State::kMessage;
        break;
      }
      case State::kMessage:
        Store();
        if (missing_ > 0) return Status();
        state_ = State::kHeader;
        inbox_->End(std::move(*std::exchange(arrival_, std::nullopt)));
        break;
      case State::kEnd:
        return Status();
    }
  }
}

// Copies bytes of the arriving message from the buffer to the message's spans.
void FrameReader::Store() {
  while (missing_ > 0 && buffered() > 0) {
    int64_t bytes = std::min(missing_, static_cast<int64_t>(buffered()));
    if (!arrival_->spans.empty()) {
      const Span& span = arrival_->spans[span_];
      bytes = std::min(bytes, span.bytes - offset_);
      if (bytes > 0) std::memcpy(span.data + offset_, buffer_.data() + begin_, static_cast<size_t>(bytes));
    }
    Skip(bytes);
    begin_ += static_cast<size_t>(bytes);
  }
}

// Advances past `bytes` bytes of the arriving message, which have been stored or dropped.
void FrameReader::Skip(int64_t bytes) {
  missing_ -= bytes;
  if (arrival_->spans.empty()) return;
  offset_ += bytes;
  while (span_ < arrival_->spans.size() && offset_ >= arrival_->spans[span_].bytes) {
    offset_ -= arrival_->spans[span_++].bytes;
  }
}

}  // namespace jaxcomm
