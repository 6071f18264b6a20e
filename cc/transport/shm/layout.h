// The memory file of a process. Only this process writes it; the others map it for reading, and the first page for
// writing. All files of a job have the same layout, so no size is ever read from one.
//
//   page 0      WritablePage
//   then        FileHeader, and a PeerChannel for each process of the job
//   then        slots of kSlotBytes: messages of this process, until their receivers have released them
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "cc/transport/transport.h"

namespace jaxcomm::shm {

constexpr uint64_t kMagic = 0x6a6178636f6d6d31;  // "jaxcomm1"
constexpr int64_t kPage = 64 << 10;              // the largest of any machine that runs this
constexpr int64_t kSlotBytes = Transport::kMaxMessage;
constexpr uint64_t kRingBytes = 64 << 10;  // a power of two
constexpr uint64_t kReleases = 1024;       // a power of two: messages in slots that one process may have for another
constexpr size_t kMaxInline = 4096;        // larger messages go into slots

constexpr size_t kRounds = 8;  // of exchanges: more than those of one group at one time

// `rounds`: the states of exchanges, each by its call.
struct WritablePage {
  std::atomic<uint32_t> doorbell;
  struct alignas(64) Round {
    std::atomic<uint64_t> state;
  } rounds[kRounds];
};
static_assert(sizeof(WritablePage) <= kPage);

// The bytes that the file's owner brings to an exchange.
struct ExchangeCell {
  CallId call;
  uint64_t fingerprint;
  int64_t bytes;
  std::chrono::steady_clock::duration at;
  alignas(64) std::byte data[Transport::kMaxExchanged];
};

struct FileHeader {
  uint64_t magic;
  uint32_t process, processes, slots;
  uint64_t nonce;
  std::atomic<uint32_t> waits;  // for room in a ring or for a slot: ring the doorbell when there is some
  ExchangeCell cells[kRounds];
};

enum class Closing : uint32_t { kOpen, kLeft, kCutOff };

// From the file's owner to one other process. The counters only grow; what they count lies at their value modulo the
// size.
struct PeerChannel {
  alignas(64) std::atomic<uint64_t> written;   // bytes of `ring`
  alignas(64) std::atomic<uint64_t> read;      // bytes of the other's ring to the owner
  alignas(64) std::atomic<uint64_t> released;  // entries of `releases`
  std::atomic<uint32_t> closing;
  alignas(64) std::atomic<uint32_t> releases[kReleases];  // the other's slots that the owner has read, once a message
  alignas(64) std::byte ring[kRingBytes];                 // Records, each followed by its bytes, at multiples of 8
};

// A notice, a message with its bytes, or a message whose bytes are in a slot.
struct Record {
  enum Kind : uint32_t { kNotice, kInline, kInSlot };
  uint32_t kind = kNotice;
  uint32_t bytes = 0;  // that follow in the ring
  MessageId id;
  int64_t at = 0, extent = 0, carried = 0;  // as in jaxcomm::Extent
  uint32_t slot = 0, offset = 0;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Record) % 8 == 0);
static_assert(kMaxInline <= Transport::kMaxNotice);

}  // namespace jaxcomm::shm
