// The slots in another process's memory that hold messages which this process is still reading.
//
//   std::shared_ptr<const std::byte> message = PeerSlots::View(slots, slot, offset);   // holds the slot
//
// Thread-safe. A view may outlive the transport.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/transport/shm/doorbell.h"
#include "cc/transport/shm/layout.h"
#include "cc/transport/shm/memory_file.h"

namespace jaxcomm::shm {

class PeerSlots {
 public:
  PeerSlots(uint32_t process, std::shared_ptr<const MemoryFile> mine, std::shared_ptr<const MemoryFile> other)
      : process_(process), mine_(std::move(mine)), other_(std::move(other)), views_(mine_->header().slots) {}

  // Returns a view of a message. The caller has checked that the message lies in the slot.
  static std::shared_ptr<const std::byte> View(std::shared_ptr<PeerSlots> slots, uint32_t slot, uint32_t offset) {
    const std::byte* const start = slots->other_->slot(slot) + offset;
    {
      std::lock_guard<std::mutex> lock(slots->mutex_);
      if (slots->views_[slot]++ == 0) ++slots->held_;
    }
    return {start, [slots = std::move(slots), slot](const std::byte*) { slots->Release(slot); }};
  }

  uint32_t held() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_;
  }

 private:
  void Release(uint32_t slot) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (--views_[slot] == 0) --held_;
      PeerChannel& channel = mine_->channel(process_);
      channel.releases[released_ % kReleases].store(slot, std::memory_order_relaxed);
      channel.released.store(++released_);
    }
    if (other_->header().waits.load() != 0) Ring(other_->doorbell());
  }

  const uint32_t process_;  // the other process
  const std::shared_ptr<const MemoryFile> mine_, other_;
  mutable std::mutex mutex_;
  std::vector<uint32_t> views_;  // number of views of each slot
  uint32_t held_ = 0;
  uint64_t released_ = 0;
};

}  // namespace jaxcomm::shm
