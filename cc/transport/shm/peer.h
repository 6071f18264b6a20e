// Another process, for ShmTransport.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/shm/memory_file.h"
#include "cc/transport/shm/peer_slots.h"
#include "cc/transport/shm/ring.h"
#include "cc/transport/shm/shm_transport.h"

namespace jaxcomm {

struct ShmTransport::Peer {
  Peer(uint32_t self, uint32_t process, const std::shared_ptr<shm::MemoryFile>& mine,
       std::shared_ptr<shm::MemoryFile> other)
      : process(process),
        memory(std::move(other)),
        to(mine->channel(process)),
        from(memory->channel(self)),
        reader(to, from),
        slots(std::make_shared<shm::PeerSlots>(process, mine, memory)),
        writer(to, from) {}

  bool ended() const { return !end.ok(); }
  bool usable() const { return !ended() && broken.empty(); }

  const uint32_t process;
  const std::shared_ptr<shm::MemoryFile> memory;
  shm::PeerChannel& to;
  const shm::PeerChannel& from;

  // Only the thread that serves.
  shm::RingReader reader;
  const std::shared_ptr<shm::PeerSlots> slots;

  // Under the transport's lock.
  shm::RingWriter writer;
  std::deque<std::pair<shm::Record, std::vector<std::byte>>> queue;  // for room in the ring
  bool unrung = false;         // something has been written since its doorbell was rung
  bool must_read = false;      // before anything else can be written
  bool is_deferred = false;    // its last wake-up was deferred
  uint64_t releases_read = 0;  // of from.releases
  int64_t early_bytes = 0;     // charged for messages that wait for a Post
  size_t posted = 0;           // messages that have not come
  std::string broken;          // its mistake
  Status end;
};

}  // namespace jaxcomm
