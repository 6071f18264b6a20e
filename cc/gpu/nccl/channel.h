// Messages over an NCCL communicator, on a stream.
//
//   NcclChannel channel(nccl, comm, stream, deadline, [&](auto... args) { return ReduceOnStream(args..., stream); });
//   Status status = runner.Run(leaves, scratch, channel);
//
// Queues everything and waits for nothing on the stream; a group that connects peers for the first time waits for them,
// no longer than the deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/gpu/nccl/await.h"
#include "cc/gpu/nccl/library.h"
#include "cc/gpu/nccl/runner.h"

namespace jaxcomm::nccl {

class NcclChannel : public Channel {
 public:
  using ReduceOn = std::function<Status(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources,
                                        std::byte* to, size_t bytes)>;

  NcclChannel(const Library& nccl, Comm comm, Stream stream, Clock::time_point deadline, ReduceOn reduce);

  Status GroupStart() override;
  Status Send(uint32_t peer, const std::byte* from, size_t bytes) override;
  Status Receive(uint32_t peer, std::byte* to, size_t bytes) override;
  Status GroupEnd() override;
  Status Reduce(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
                size_t bytes) override;

 private:
  Status Check(const char* operation, Outcome outcome) const;

  const Library& nccl_;
  const Comm comm_;
  const Stream stream_;
  const Clock::time_point deadline_;
  const ReduceOn reduce_;
};

}  // namespace jaxcomm::nccl
