// Runs a rank's messages over a channel.
//
//   Runner runner(messages, layout, Reduction::kSum);
//   Status status = runner.Run(leaves, scratch, channel);   // scratch: runner.scratch_bytes(), aligned as the leaves
//   are
//
// Every rank that runs the same schedule on the same layout issues messages that match its peers', in the same order,
// and adds the same operands in the same order: all end with the same bits. Thread-safe; keeps nothing of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/layout.h"
#include "cc/kernels/types.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// What carries messages and adds: NCCL on a stream, or a simulation. Whatever was queued last runs after all before it.
class Channel {
 public:
  virtual ~Channel() = default;

  // Messages between the two go at once: none waits for one that is listed later.
  virtual Status GroupStart() = 0;
  virtual Status Send(uint32_t peer, const std::byte* from, size_t bytes) = 0;
  virtual Status Receive(uint32_t peer, std::byte* to, size_t bytes) = 0;
  virtual Status GroupEnd() = 0;

  // `to` may be one of the sources; one source is copied.
  virtual Status Reduce(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
                        size_t bytes) = 0;
};

class Runner {
 public:
  Runner(std::shared_ptr<const Messages> messages, Layout layout, Reduction reduction);

  size_t scratch_bytes() const { return slot_bytes_ * messages_->slots(); }

  // The leaves hold this rank's part before, and the sum after what is queued here.
  Status Run(const std::vector<std::byte*>& leaves, std::byte* scratch, Channel& channel) const;

 private:
  template <typename Visit>
  Status ForEachPart(uint32_t chunk, Visit visit) const;

  std::shared_ptr<const Messages> messages_;
  Layout layout_;
  Reduction reduction_;
  size_t slot_bytes_ = 0;
};

}  // namespace jaxcomm
