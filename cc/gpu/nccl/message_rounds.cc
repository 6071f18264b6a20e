#include "cc/gpu/nccl/message_rounds.h"

#include <algorithm>
#include <string>

#include "cc/gpu/kernels/reduce.h"

namespace jaxcomm::nccl {
namespace {

// The part of a leaf that lies in a chunk: the leaf's number, the part's offsets in the leaf and in a scratch slot, and
// the part's size.
struct LeafPart {
  size_t leaf, in_leaf, in_slot, bytes;
};

std::vector<LeafPart> PartsOf(const Layout& layout, uint32_t chunk, uint32_t chunks) {
  std::vector<LeafPart> parts;
  size_t in_slot = 0;
  layout.ForEach(layout.Bound(chunk, chunks), layout.Bound(chunk + 1, chunks),
                 [&](size_t leaf, int64_t offset, int64_t bytes) {
                   parts.push_back({leaf, static_cast<size_t>(offset), in_slot, static_cast<size_t>(bytes)});
                   constexpr size_t kMask = Layout::kAlignment - 1;
                   in_slot = (in_slot + static_cast<size_t>(bytes) + kMask) & ~kMask;
                 });
  return parts;
}

}  // namespace

size_t MessageRounds::SlotBytes() const {
  const uint32_t chunks = messages->chunks();
  int64_t most = 0;
  for (uint32_t c = 0; c < chunks; ++c) most = std::max(most, layout.Bound(c + 1, chunks) - layout.Bound(c, chunks));
  return static_cast<size_t>(most);
}

Status MessageRounds::Queue(const Library& nccl, Comm comm, const std::vector<std::byte*>& leaves, std::byte* scratch,
                            cudaStream_t stream) const {
  const size_t slot_bytes = SlotBytes();
  const auto at = [&](uint32_t place, const LeafPart& part) {
    return place == Messages::kOwn ? leaves[part.leaf] + part.in_leaf
                                   : scratch + (place - 1) * slot_bytes + part.in_slot;
  };
  for (size_t index = 0; index < messages->rounds().size(); ++index) {
    const Round& round = messages->rounds()[index];
    Outcome outcome = nccl.GroupStart();
    const auto for_each = [&](uint32_t chunk, auto queue) {
      for (const LeafPart& part : PartsOf(layout, chunk, messages->chunks()))
        outcome = outcome == kSuccess ? queue(part) : outcome;
    };
    for (const auto& [peer, chunk] : round.sends) {
      for_each(chunk, [&, to = static_cast<int>(peer)](const LeafPart& part) {
        return nccl.Send(at(Messages::kOwn, part), part.bytes, kInt8, to, comm, stream);
      });
    }
    for (const auto& [peer, chunk, place] : round.receives) {
      for_each(chunk, [&, from = static_cast<int>(peer), slot = place](const LeafPart& part) {
        return nccl.Recv(at(slot, part), part.bytes, kInt8, from, comm, stream);
      });
    }
    // Ends the group even if NCCL refused a message. Otherwise this thread's next messages would join the same group.
    const Outcome ended = nccl.GroupEnd();
    Status status = nccl.Check("round " + std::to_string(index), outcome == kSuccess ? ended : outcome, comm);
    for (const Sum& sum : round.sums) {
      if (sum.places.size() > cuda::kMaxSources) status = InvalidArgument("a sum of more than 64 ranks at once");
      for (const LeafPart& part : PartsOf(layout, sum.chunk, messages->chunks())) {
        if (!status.ok()) break;
        cuda::Sources sources = {{}, sum.places.size()};
        for (size_t i = 0; i < sources.count; ++i) sources.buffers[i] = at(sum.places[i], part);
        const DType dtype = layout.leaves()[part.leaf].dtype;
        status = cuda::Reduce(dtype, reduction, sources, at(Messages::kOwn, part), part.bytes, stream);
      }
    }
    if (!status.ok()) return status;
  }
  return Status();
}

}  // namespace jaxcomm::nccl
