// The state that ShmTransport keeps for another process.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/shm/memory_file.h"
#include "cc/transport/shm/peer_memory.h"
#include "cc/transport/shm/peer_slots.h"
#include "cc/transport/shm/peer_transfers.h"
#include "cc/transport/shm/ring.h"
#include "cc/transport/shm/shm_transport.h"

namespace jaxcomm {

struct ShmTransport::Peer {
  Peer(ShmTransport& owner, uint32_t process, std::shared_ptr<shm::MemoryFile> other)
      : process(process),
        memory(std::move(other)),
        to(owner.memory_->channel(process)),
        from(memory->channel(owner.process_)),
        bytes(memory->header().pid, memory->header().nonce_at, memory->header().nonce),
        can_read(bytes.CanRead()),
        transfers(*owner.memory_, owner.transfer_buffers_, owner.process_,
                  {process, memory.get(), can_read ? &bytes : nullptr, [this] { return from.reads != 0; },
                   [this, &owner] {
                     Lock lock(owner.mutex_);
                     return !ended();
                   }}),
        reader(to, from),
        slots(std::make_shared<shm::PeerSlots>(process, owner.memory_, memory)),
        writer(to, from) {}

  bool ended() const { return !end.ok(); }
  bool usable() const { return !ended() && broken.empty(); }

  const uint32_t process;
  const std::shared_ptr<shm::MemoryFile> memory;
  shm::PeerChannel& to;
  const shm::PeerChannel& from;
  const shm::PeerMemory bytes;  // reads the peer's memory; works only if `can_read` is true
  const bool can_read;
  shm::PeerTransfers transfers;

  // Used only by the thread that holds serving_.
  shm::RingReader reader;
  const std::shared_ptr<shm::PeerSlots> slots;

  // Guarded by the transport's mutex_.
  shm::RingWriter writer;
  std::deque<std::pair<shm::Record, std::vector<std::byte>>> queue;  // records that wait for room in the ring
  bool unrung = false;         // something has been written since the peer's doorbell was last rung
  bool must_read = false;      // the peer must read before more can be written
  bool is_deferred = false;    // the peer's last wake-up was deferred
  uint64_t releases_read = 0;  // number of entries of `from.releases` that have been read
  int64_t early_bytes = 0;     // bytes counted against kMaxEarlyBytes for messages that wait for a Post
  size_t posted = 0;           // number of posted messages that have not arrived
  std::string broken;          // the peer's protocol error; empty: no error
  Status end;
};

}  // namespace jaxcomm
