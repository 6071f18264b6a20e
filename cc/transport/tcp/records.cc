#include "cc/transport/tcp/records.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace jaxcomm {
namespace {

// The first three bytes of a record, and the byte that follows its text, mark the record as application data.
constexpr std::byte kType{23}, kMajor{3}, kMinor{3};
constexpr size_t kOverhead = kRecordHeaderBytes + 1 + kTagBytes;
constexpr size_t kBufferedRecords = 16;  // number of whole records that the reader's buffer can hold

size_t SizeOf(const iovec* vectors, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += vectors[i].iov_len;
  return size;
}

}  // namespace

RecordWriter::RecordWriter(Sealer sealer, uint64_t records_of_a_key)
    : cipher_(std::move(sealer), records_of_a_key), buffer_(kBatch * (kRecordBytes + kOverhead)) {}

ssize_t RecordWriter::Send(int socket, const iovec* vectors, size_t count) {
  size_t left = SizeOf(vectors, count), taken = 0, offset = 0;  // `offset`: number of bytes already taken from *vectors
  for (;;) {
    while (begin_ < end_) {
      const ssize_t sent = send(socket, buffer_.data() + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN && taken > 0 ? static_cast<ssize_t>(taken) : -1;
      begin_ += static_cast<size_t>(sent);
    }
    if (left == 0) return static_cast<ssize_t>(taken);
    begin_ = end_ = 0;
    for (size_t record = 0; record < kBatch && left > 0; ++record) {
      const size_t bytes = std::min(left, kRecordBytes), sealed = bytes + 1 + kTagBytes;
      std::byte* out = buffer_.data() + end_;
      const std::byte head[] = {kType, kMajor, kMinor, static_cast<std::byte>(sealed >> 8),
                                static_cast<std::byte>(sealed)};
      out = std::copy(std::begin(head), std::end(head), out);
      if (!cipher_.Begin(head)) return errno = EIO, -1;
      for (size_t missing = bytes; missing > 0;) {
        const size_t part = std::min(missing, vectors->iov_len - offset);
        if (part > 0) cipher_.side.Add(static_cast<const std::byte*>(vectors->iov_base) + offset, part, out);
        out += part;
        missing -= part;
        offset += part;
        if (offset == vectors->iov_len) ++vectors, offset = 0;
      }
      cipher_.side.Add(&kType, 1, out);
      if (!cipher_.side.End(out + 1)) return errno = EIO, -1;
      end_ += kRecordHeaderBytes + sealed;
      left -= bytes;
      taken += bytes;
    }
  }
}

RecordReader::RecordReader(Opener opener, uint64_t records_of_a_key)
    : cipher_(std::move(opener), records_of_a_key), buffer_(kBufferedRecords * (kRecordBytes + kOverhead)) {}

ssize_t RecordReader::Receive(int socket, const iovec* vectors, size_t count) {
  for (;;) {
    if (const size_t stored = Store(vectors, count); stored > 0) return static_cast<ssize_t>(stored);
    if (is_broken_) return errno = EBADMSG, -1;
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);  // less than one record
    end_ -= begin_;
    begin_ = 0;
    const ssize_t bytes = recv(socket, buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
    if (bytes <= 0) return bytes;
    end_ += static_cast<size_t>(bytes);
  }
}

// Opens records and copies their texts to `vectors`, until these are full or no whole record is left.
size_t RecordReader::Store(const iovec* vectors, size_t count) {
  size_t stored = 0;
  for (; count > 0; ++vectors, --count) {
    for (size_t offset = 0; offset < vectors->iov_len;) {
      while (text_ == text_end_) {
        if (is_broken_ || !HasRecord()) return stored;
        is_broken_ = !Open();
      }
      const size_t part = std::min(vectors->iov_len - offset, text_end_ - text_);
      std::memcpy(static_cast<std::byte*>(vectors->iov_base) + offset, buffer_.data() + text_, part);
      text_ += part;
      offset += part;
      stored += part;
    }
  }
  return stored;
}

size_t RecordReader::RecordSize() const {
  return kRecordHeaderBytes +
         (static_cast<size_t>(buffer_[begin_ + 3]) << 8 | static_cast<size_t>(buffer_[begin_ + 4]));
}

bool RecordReader::IsHeaderValid() const {
  const std::byte* const head = buffer_.data() + begin_;
  const size_t size = RecordSize();
  return head[0] == kType && head[1] == kMajor && head[2] == kMinor && size >= kOverhead &&
         size <= kRecordBytes + kOverhead;
}

// Returns whether the buffer holds a whole record, or an invalid header.
bool RecordReader::HasRecord() const {
  if (end_ - begin_ < kRecordHeaderBytes) return false;
  return !IsHeaderValid() || end_ - begin_ >= RecordSize();
}

// Opens the next record in place. Returns false if the record was not sealed with the connection's key.
bool RecordReader::Open() {
  if (!IsHeaderValid()) return false;
  const size_t size = RecordSize();
  std::byte* const head = buffer_.data() + begin_;
  std::byte* const text = head + kRecordHeaderBytes;
  const size_t bytes = size - kRecordHeaderBytes - kTagBytes;
  if (!cipher_.Begin(head)) return false;
  cipher_.side.Add(text, bytes, text);
  if (!cipher_.side.End(text + bytes) || text[bytes - 1] != kType) return false;
  text_ = begin_ + kRecordHeaderBytes;
  text_end_ = text_ + bytes - 1;
  begin_ += size;
  return true;
}

Result<std::unique_ptr<Records>> Records::Make(const CipherKeys& keys) {
  Result<Sealer> sealer = Sealer::Make(keys.sends);
  if (!sealer.ok()) return sealer.status();
  Result<Opener> opener = Opener::Make(keys.receives);
  if (!opener.ok()) return opener.status();
  return std::make_unique<Records>(
      Records{RecordWriter(std::move(sealer.value())), RecordReader(std::move(opener.value()))});
}

}  // namespace jaxcomm
