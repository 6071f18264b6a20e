// The buffers in a process's memory file that hold copies of the bytes that the process has offered (transfers.h). A
// buffer is free again when the receiver has taken the bytes. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "cc/transport/shm/layout.h"
#include "cc/transport/shm/transfer_state.h"

namespace jaxcomm::shm {

class TransferBuffers {
 public:
  // Returns the index of a free buffer, which a reserved transfer then uses. Prefers buffers that may be cached.
  // Returns kInPlace if no buffer is free.
  uint32_t Claim(const TransferState& transfer) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t index = 0; index < users_.size(); ++index) {
      if (users_[index] && users_[index]->IsInUse()) continue;
      users_[index].emplace(transfer);
      return index;
    }
    return TransferCell::kInPlace;
  }

 private:
  std::mutex mutex_;
  std::array<std::optional<TransferState>, kTransferBuffers> users_;  // the last transfer that used each buffer
};

}  // namespace jaxcomm::shm
