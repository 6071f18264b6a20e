// Queues a rank's part of a whole schedule on a stream: for each round one group of sends and receives, then its sums.
//
//   const MessageRounds rounds{messages, Layout(leaves), Reduction::kSum};
//   Status status = rounds.Queue(nccl, comm, at, scratch, stream);   // scratch: rounds.ScratchBytes()
//
// In place on the leaves, and in the order of the program alone: every rank that runs the same schedule on the same
// layout queues messages that match its peers', and adds the same operands in the same order. So all end with the same
// bits. Waits for nothing. Immutable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/layout.h"
#include "cc/gpu/nccl/library.h"
#include "cc/kernels/types.h"
#include "cc/program/messages.h"

namespace jaxcomm::nccl {

struct MessageRounds {
  // The leaves hold this rank's part before, and the sum after what is queued.
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
