#include "cc/gpu/nccl/runner.h"

#include <algorithm>
#include <utility>

namespace jaxcomm {

Runner::Runner(std::shared_ptr<const Messages> messages, Layout layout, Reduction reduction)
    : messages_(std::move(messages)), layout_(std::move(layout)), reduction_(reduction) {
  const uint32_t chunks = messages_->chunks();
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t bytes = layout_.Bound(chunk + 1, chunks) - layout_.Bound(chunk, chunks);
    slot_bytes_ = std::max(slot_bytes_, static_cast<size_t>(bytes));
  }
}

// Calls visit(leaf, offset in the leaf, offset in the chunk, bytes) for every part of a leaf in a chunk, until one
// fails.
template <typename Visit>
Status Runner::ForEachPart(uint32_t chunk, Visit visit) const {
  const int64_t begin = layout_.Bound(chunk, messages_->chunks());
  const int64_t end = layout_.Bound(chunk + 1, messages_->chunks());
  Status status;
  size_t in_slot = 0;
  layout_.ForEach(begin, end, [&](size_t leaf, int64_t offset, int64_t bytes) {
    if (!status.ok()) return;
    status = visit(leaf, static_cast<size_t>(offset), in_slot, static_cast<size_t>(bytes));
    constexpr size_t kMask = Layout::kAlignment - 1;
    in_slot = (in_slot + static_cast<size_t>(bytes) + kMask) & ~kMask;
  });
  return status;
}

Status Runner::Run(const std::vector<std::byte*>& leaves, std::byte* scratch, Channel& channel) const {
  const auto at = [&](uint32_t place, size_t leaf, size_t in_leaf, size_t in_slot) {
    return place == Messages::kOwn ? leaves[leaf] + in_leaf : scratch + (place - 1) * slot_bytes_ + in_slot;
  };
  for (const Round& round : messages_->rounds()) {
    if (Status status = channel.GroupStart(); !status.ok()) return status;
    Status status;
    for (const SendChunk& send : round.sends) {
      if (!status.ok()) break;
      status = ForEachPart(send.chunk, [&](size_t leaf, size_t in_leaf, size_t, size_t bytes) {
        return channel.Send(send.peer, leaves[leaf] + in_leaf, bytes);
      });
    }
    for (const ReceiveChunk& receive : round.receives) {
      if (!status.ok()) break;
      status = ForEachPart(receive.chunk, [&](size_t leaf, size_t in_leaf, size_t in_slot, size_t bytes) {
        return channel.Receive(receive.peer, at(receive.place, leaf, in_leaf, in_slot), bytes);
      });
    }
    // A group is ended even if a message of it was refused: else the next caller's messages would join it.
    const Status ended = channel.GroupEnd();
    if (!status.ok()) return status;
    if (!ended.ok()) return ended;
    for (const Sum& sum : round.sums) {
      status = ForEachPart(sum.chunk, [&](size_t leaf, size_t in_leaf, size_t in_slot, size_t bytes) {
        std::vector<const std::byte*> sources;
        for (const uint32_t place : sum.places) sources.push_back(at(place, leaf, in_leaf, in_slot));
        const DType dtype = layout_.leaves()[leaf].dtype;
        return channel.Reduce(dtype, reduction_, sources, leaves[leaf] + in_leaf, bytes);
      });
      if (!status.ok()) return status;
    }
  }
  return Status();
}

}  // namespace jaxcomm
