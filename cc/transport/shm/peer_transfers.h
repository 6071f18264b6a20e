// The transfers between this process and another process of its host (transfers.h).
//
//   PeerTransfers transfers(mine, buffers, self, {process, file, &memory, reads, lives});
//
// The sender describes its bytes in a cell of its own memory file. It copies up to kTransferBufferBytes into a buffer
// there, and need not wait then. The receiver reads more bytes in the sender's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "cc/transport/shm/memory_file.h"
#include "cc/transport/shm/transfer_buffers.h"
#include "cc/transport/shm/transfer_state.h"
#include "cc/transport/transfers.h"

namespace jaxcomm::shm {

class PeerTransfers final : public Transfers {
 public:
  struct Peer {
    uint32_t process;
    const MemoryFile* file;
    const MemoryReader* memory;   // null if this process cannot read the peer's memory
    std::function<bool()> reads;  // whether the peer can read this process's memory
    std::function<bool()> lives;  // returns false if the peer has ended
  };

  PeerTransfers(const MemoryFile& mine, TransferBuffers& buffers, uint32_t self, Peer peer)
      : mine_(mine), buffers_(buffers), self_(self), peer_(std::move(peer)), files_{peer_.file} {}

  std::unique_ptr<OfferedBytes> Offer(const TransferPart& mine, const std::byte* bytes, int64_t count) override;
  std::optional<Clock::time_point> Take(const TransferPart& mine, std::byte* to, int64_t count,
                                        const WaitLimits& limits, const std::function<bool()>& will_not_come) override;
  void Forget(const CallId& call) override;

 private:
  class Offered;

  TransferState Outgoing(const CallId& call) const;
  TransferState Incoming(const CallId& call) const;
  TransferCell ReadCell(const CallId& call) const;
  static void Reject(const TransferCell& cell, TransferState& state);
  template <typename Ready>
  void YieldFor(const WaitLimits& limits, const Ready& ready) const;

  const MemoryFile& mine_;
  TransferBuffers& buffers_;
  const uint32_t self_;
  const Peer peer_;
  const std::array<const MemoryFile*, 1> files_;
};

}  // namespace jaxcomm::shm
