// The ring of a channel. One process writes records, and the other process reads them. Each process checks the counters
// and sizes of the other process.
//
//   writer.Write(record, bytes)           // kFull: retry after the other process has read
//   reader.Look();                        // finds the bytes written so far
//   while (reader.Read(&record, &bytes) == RingResult::kDone) ...
//   reader.Publish();                     // lets the writer reuse the room of the records that were read
//
// kBroken: the counters or sizes of the other process are invalid.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/transport/shm/layout.h"

namespace jaxcomm::shm {

enum class RingResult { kDone, kFull, kEmpty, kBroken };

inline uint64_t BytesInRing(const Record& record) { return (sizeof(Record) + record.bytes + 7) / 8 * 8; }

class RingWriter {
 public:
  RingWriter(PeerChannel& mine, const PeerChannel& other) : mine_(mine), other_(other) {}

  RingResult Write(const Record& record, const std::byte* bytes) {
    const uint64_t used = written_ - other_.read.load();
    if (used > kRingBytes) return RingResult::kBroken;
    if (BytesInRing(record) > kRingBytes - used) return RingResult::kFull;
    Put(written_, reinterpret_cast<const std::byte*>(&record), sizeof(record));
    Put(written_ + sizeof(record), bytes, record.bytes);
    written_ += BytesInRing(record);
    mine_.written.store(written_);
    return RingResult::kDone;
  }

 private:
  void Put(uint64_t position, const std::byte* from, size_t bytes) {
    const size_t start = position % kRingBytes, first = std::min<size_t>(bytes, kRingBytes - start);
    if (first != 0) std::memcpy(mine_.ring + start, from, first);
    if (bytes != first) std::memcpy(mine_.ring, from + first, bytes - first);
  }

  PeerChannel& mine_;
  const PeerChannel& other_;
  uint64_t written_ = 0;
};

class RingReader {
 public:
  using Bytes = std::array<std::byte, Transport::kMaxNotice>;

  RingReader(PeerChannel& mine, const PeerChannel& other) : mine_(mine), other_(other) {}

  void Look() { end_ = other_.written.load(); }

  RingResult Read(Record* record, Bytes* bytes) {
    const uint64_t there = end_ - read_;
    if (there == 0) return RingResult::kEmpty;
    if (there > kRingBytes || there < sizeof(Record)) return RingResult::kBroken;
    Get(read_, reinterpret_cast<std::byte*>(record), sizeof(*record));
    if (record->bytes > Transport::kMaxNotice || BytesInRing(*record) > there) return RingResult::kBroken;
    Get(read_ + sizeof(*record), bytes->data(), record->bytes);
    read_ += BytesInRing(*record);
    if (read_ - published_ > kRingBytes / 4) Publish();
    return RingResult::kDone;
  }

  void Publish() {
    if (read_ != published_) mine_.read.store(published_ = read_);
  }

  uint64_t bytes_read() const { return read_; }

 private:
  void Get(uint64_t position, std::byte* to, size_t bytes) const {
    const size_t start = position % kRingBytes, first = std::min<size_t>(bytes, kRingBytes - start);
    std::memcpy(to, other_.ring + start, first);
    if (bytes != first) std::memcpy(to + first, other_.ring, bytes - first);
    // The fence makes later checks use the copy, because the other process may change the bytes in the ring.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  PeerChannel& mine_;
  const PeerChannel& other_;
  uint64_t read_ = 0, published_ = 0, end_ = 0;
};

}  // namespace jaxcomm::shm
