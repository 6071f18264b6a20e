// Queues a rank's part of a whole schedule on a stream. Each round is one group of sends and receives, then the round's
// sums.
//
//   const MessageRounds rounds{messages, Layout(leaves), Reduction::kSum};
//   Status status = rounds.Queue(nccl, comm, at, scratch, stream);   // `scratch` has rounds.ScratchBytes() bytes
//
// Works in place, one round after another. All ranks must have the same schedule and the same layout. Ranks then queue
// matching messages and add the same operands in the same order, so their results are equal bit for bit. Queue does not
// block. Immutable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/layout.h"
#include "cc/gpu/nccl/library.h"
#include "cc/kernels/types.h"
#include "cc/program/messages.h"

namespace jaxcomm::nccl {

struct MessageRounds {
  // `leaves` hold this rank's operands before the queued work, and the results after the work.
  Status Queue(const Library& nccl, Comm comm, const std::vector<std::byte*>& leaves, std::byte* scratch,
               cudaStream_t stream) const;

  size_t ScratchBytes() const { return SlotBytes() * messages->slots(); }

  std::shared_ptr<const Messages> messages;
  Layout layout;
  Reduction reduction;

 private:
  size_t SlotBytes() const;
};

}  // namespace jaxcomm::nccl
