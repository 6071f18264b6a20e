#include "cc/gpu/nccl/channel.h"

#include <utility>

namespace jaxcomm::nccl {

NcclChannel::NcclChannel(const Library& nccl, Comm comm, Stream stream, Clock::time_point deadline, ReduceOn reduce)
    : nccl_(nccl), comm_(comm), stream_(stream), deadline_(deadline), reduce_(std::move(reduce)) {}

Status NcclChannel::GroupStart() {
  if (Clock::now() >= deadline_) return Status(Code::kDeadlineExceeded, "starting a group: it is too late");
  return Check("starting a group", nccl_.GroupStart());
}

Status NcclChannel::Send(uint32_t peer, const std::byte* from, size_t bytes) {
  return Check("sending", nccl_.Send(from, bytes, kInt8, static_cast<int>(peer), comm_, stream_));
}

Status NcclChannel::Receive(uint32_t peer, std::byte* to, size_t bytes) {
  return Check("receiving", nccl_.Recv(to, bytes, kInt8, static_cast<int>(peer), comm_, stream_));
}

// Until the group is on the stream: what is queued after it must come after it.
Status NcclChannel::GroupEnd() {
  if (Status status = Check("ending a group", nccl_.GroupEnd()); !status.ok()) return status;
  return AwaitCommunicator(nccl_, comm_, "ending a group", deadline_, [] { return "its messages were not launched"; });
}

Status NcclChannel::Reduce(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources,
                           std::byte* to, size_t bytes) {
  return reduce_(dtype, reduction, sources, to, bytes);
}

Status NcclChannel::Check(const char* operation, Outcome outcome) const {
  if (outcome == kSuccess || outcome == kInProgress) return Status();
  return nccl_.Error(operation, outcome, comm_);
}

}  // namespace jaxcomm::nccl
