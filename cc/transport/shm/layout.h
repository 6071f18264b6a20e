// The layout of the memory file of a process. The process writes the file. The other processes read the file, and write
// only its first part. All files of a job have the same layout, so a process never reads a size from a file.
//
//   first       WritablePart and the states of transfers
//   then        FileHeader, and a PeerChannel for each process of the job
//   then        slots of kSlotBytes, which hold messages of this process until all receivers have released them
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/transport/shm/exchange_round.h"
#include "cc/transport/shm/state_word.h"
#include "cc/transport/transport.h"

namespace jaxcomm::shm {

constexpr uint64_t kMagic = 0x6a6178636f6d6d31;  // "jaxcomm1"
constexpr int64_t kPage = 64 << 10;              // the largest page size of the supported machines
constexpr int64_t kSlotBytes = Transport::kMaxMessage;
constexpr uint64_t kRingBytes = 64 << 10;  // a power of two
constexpr uint64_t kReleases = 1024;  // maximum number of messages in slots from one process to another; a power of two
constexpr size_t kMaxInline = 4096;   // larger messages go into slots

// Number of rounds for a group, and for transfers to a process. A round is the shared state of one exchange
// (exchange_round.h) or transfer (transfer_state.h) at a time. The call determines the round.
constexpr size_t kRounds = 8;

// Copies of offered bytes (transfer_buffers.h). The receiver reads more bytes in the sender's memory.
constexpr uint32_t kTransferBuffers = 64;
constexpr int64_t kTransferBufferBytes = 64 << 10;

// The part of the file that other processes also write. `rounds` are for groups in which the file's owner is rank 0.
// After this struct, the file has kRounds states for each process of the job, for transfers to that process.
struct WritablePart {
  struct alignas(64) RoundState {
    StateWord state;
  };

  std::atomic<uint32_t> doorbell;
  std::atomic<int64_t> rests_until;  // see YieldUntil; all processes of the host set it
  RoundState rounds[kRounds];
};

// Describes the bytes that the file's owner contributes to an exchange. The data beside the cell are the bytes, or, if
// other processes read the bytes in place, the addresses of the spans in the owner's memory.
struct ExchangeCell {
  CallId call;
  uint64_t fingerprint;
  std::chrono::steady_clock::duration at;
  int64_t bytes;
  uint32_t in_place;  // 0 or 1
};

// Describes the bytes that the file's owner offers in a transfer.
struct TransferCell {
  static constexpr uint32_t kInPlace = 0xffffffff;

  CallId call;
  uint64_t fingerprint;
  std::chrono::steady_clock::duration at;
  int64_t bytes;
  const std::byte* address;  // in the owner's memory
  uint32_t buffer;           // the index of the buffer that has a copy of the bytes; kInPlace if they are not copied
};

struct FileHeader {
  uint64_t magic;
  uint32_t process, processes, slots;
  int32_t pid;
  uint64_t nonce;
  uint64_t nonce_at;  // the address of `nonce` in the owner's memory
  // Nonzero while the owner waits for room in a ring or for a slot. A process that makes room or releases a slot then
  // rings the doorbell of the owner.
  std::atomic<uint32_t> waits;
  // When the owner began to wait in an exchange or a transfer, in nanoseconds of the steady clock; 0 while it does not
  // wait.
  alignas(64) std::atomic<int64_t> waits_since;
  std::atomic<int> processor;  // the processor on which the owner last joined one
  struct GroupCell {
    ExchangeCell cell;
    alignas(64) std::byte data[Transport::kMaxExchanged];
  } cells[kRounds];
  alignas(64) std::byte transfer_buffers[kTransferBuffers][kTransferBufferBytes];
};

static_assert(ExchangeRound::kMaxRanks * sizeof(void*) <= Transport::kMaxExchanged);  // the addresses of all spans fit

// Reads a cell once, because its owner may write it at any time.
template <typename Cell>
Cell ReadOnce(const Cell& cell) {
  Cell copy;
  std::memcpy(&copy, &cell, sizeof(copy));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

// Successive calls on a communicator use different rounds. The communicator's number is hashed, because the low bits of
// such numbers are often equal.
inline size_t RoundOf(const CallId& call) {
  return ((call.communicator * 0x9e3779b97f4a7c15 >> 32) + call.launch + call.site + call.iteration) % kRounds;
}

enum class Closing : uint32_t { kOpen, kLeft, kCutOff };

// A channel from the file's owner to one other process. Counters only grow. Byte n of a ring, or entry n of `releases`,
// is at index n modulo the array's size.
struct PeerChannel {
  alignas(64) std::atomic<uint64_t> written;   // number of bytes written into `ring`
  alignas(64) std::atomic<uint64_t> read;      // number of bytes read from the other process's ring
  alignas(64) std::atomic<uint64_t> released;  // number of entries written into `releases`
  std::atomic<uint32_t> closing;
  std::atomic<uint32_t> reads;      // nonzero if the owner can read the other process's memory directly
  TransferCell transfers[kRounds];  // of transfers to the other process
  // There is one entry for each message that the owner has released. An entry is the number of the other process's slot
  // that held the message.
  alignas(64) std::atomic<uint32_t> releases[kReleases];
  alignas(64) std::byte ring[kRingBytes];  // records at offsets that are multiples of 8; each is followed by its bytes
};

// A notice, a message with its bytes, or a message whose bytes are in a slot.
struct Record {
  enum Kind : uint32_t { kNotice, kInline, kInSlot };
  uint32_t kind = kNotice;
  uint32_t bytes = 0;  // number of bytes that follow in the ring
  MessageId id;
  int64_t at = 0, extent = 0, carried = 0;  // as in jaxcomm::Extent
  uint32_t slot = 0, offset = 0;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Record) % 8 == 0);
static_assert(kMaxInline <= Transport::kMaxNotice);

}  // namespace jaxcomm::shm
