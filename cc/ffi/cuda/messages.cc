// The custom call "jaxcomm_messages": an all-reduce by sends and receives between processes that NCCL connects, over
// communicators of ours; and "jaxcomm_messages_xla", over one that XLA lends.

#include "cc/ffi/cuda/messages.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cc/base/text.h"
#include "cc/executor/cuda/on_device.h"
#include "cc/ffi/values.h"
#include "cc/messages/cut.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

// Of what all ranks must have in common in a call.
uint32_t Print(const std::vector<Leaf>& leaves, const std::string& attributes) {
  std::string text = attributes;
  for (const Leaf& leaf : leaves) {
    text += ";" + std::to_string(static_cast<int>(leaf.dtype)) + "," + std::to_string(leaf.bytes);
  }
  return nccl::PrintOf(text);
}

// The operands, copied to the results where they are not the same memory.
Status Place(ffi::RemainingArgs args, ffi::RemainingRets results, cudaStream_t stream, std::vector<Leaf>& leaves,
             std::vector<std::byte*>& at) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer x = *args.get<ffi::AnyBuffer>(i);
    ffi::Result<ffi::AnyBuffer> y = *results.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(x.element_type());
    if (!dtype) return Status(Code::kUnimplemented, "messages: no reduction of this element type");
    if (x.untyped_data() != y->untyped_data()) {
      const cudaError_t copied =
          cudaMemcpyAsync(y->untyped_data(), x.untyped_data(), x.size_bytes(), cudaMemcpyDeviceToDevice, stream);
      if (copied != cudaSuccess) return CudaError("copying an operand", copied);
    }
    leaves.push_back({*dtype, static_cast<int64_t>(x.size_bytes())});
    at.push_back(static_cast<std::byte*>(y->untyped_data()));
  }
  return Status();
}

// The lanes of a call: the one that XLA lends, its group's, or those of the rails that have a share of it.
std::vector<Lane> Lanes(const Turn& turn, const Asked& asked, nccl::Comm lent, const std::vector<Leaf>& leaves,
                        const std::vector<std::byte*>& at, Reduction reduction, cudaStream_t stream) {
  std::vector<Lane> lanes;
  if (lent != nullptr || asked.iteration >= 0) {
    const nccl::Comm comm = lent != nullptr ? lent : turn.part->communicators->group(asked.iteration);
    lanes.push_back({comm, stream, Runner(turn.messages, Layout(leaves), reduction), at});
    return lanes;
  }
  const std::vector<std::vector<Piece>> cut = Cut(Layout(leaves), asked.shares);
  for (size_t rail = 0; rail < cut.size(); ++rail) {
    if (cut[rail].empty()) continue;
    std::vector<Leaf> parts;
    std::vector<std::byte*> places;
    for (const Piece& piece : cut[rail]) {
      parts.push_back({leaves[piece.leaf].dtype, piece.bytes});
      places.push_back(at[piece.leaf] + piece.offset);
    }
    lanes.push_back({turn.part->communicators->rail(rail), rail == 0 ? stream : turn.part->streams[rail - 1]->get(),
                     Runner(turn.messages, Layout(std::move(parts)), reduction), std::move(places)});
  }
  return lanes;
}

}  // namespace

ffi::Error AllReduce(cudaStream_t stream, ffi::ScratchAllocator& scratch, ffi::RemainingArgs args,
                     ffi::RemainingRets results, const Asked& asked, const Borrow& borrow) {
  int device = 0;
  if (const cudaError_t error = cudaStreamGetDevice(stream, &device); error != cudaSuccess) {
    return ToError(CudaError("the stream's device", error));
  }
  const OnDevice here(device);  // events and kernels are the current device's
  Result<Turn> taken = TakeTurn(device, asked.group, asked.iteration, asked.messages);
  if (!taken.ok()) return ToError(taken.status());
  const Turn& turn = taken.value();
  const std::optional<Reduction> reduction = ParseReduction(asked.reduction);
  if (!reduction) return ToError(InvalidArgument("messages: unknown reduction '" + std::string(asked.reduction) + "'"));
  std::vector<Leaf> leaves;
  std::vector<std::byte*> at;
  if (Status status = Place(args, results, stream, leaves, at); !status.ok()) return ToError(status);
  if (turn.members.size() == 1) return ffi::Error::Success();

  Borrowed borrowed;
  const std::string its = "messages: group '" + std::string(asked.group) + "' has ";
  if (turn.part->loan) {
    if (!borrow) return ToError(InvalidArgument(its + "none of ours; XLA lends them"));
    if (Status status = borrow(*turn.part, borrowed); !status.ok()) return ToError(status);
  } else if (borrow) {
    return ToError(InvalidArgument(its + "communicators of ours"));
  } else if (const size_t rails = turn.part->streams.size() + 1; asked.shares.size() > rails) {
    return ToError(InvalidArgument("messages: " + std::to_string(asked.shares.size()) + " shares; the group has " +
                                   std::to_string(rails) + " rails"));
  }
  std::vector<Lane> lanes = Lanes(turn, asked, borrowed.comm, leaves, at, *reduction, stream);
  for (Lane& lane : lanes) {
    if (lane.runner.scratch_bytes() == 0) continue;
    const std::optional<void*> allocated = scratch.Allocate(lane.runner.scratch_bytes(), 256);
    if (!allocated) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "messages: no memory for their scratch");
    lane.scratch = static_cast<std::byte*>(*allocated);
  }
  std::string attributes =
      std::string(asked.messages) + ";" + std::string(asked.reduction) + ";" + std::to_string(asked.iteration);
  for (const double share : asked.shares) attributes += ";" + std::to_string(share);
  const nccl::CallNumber number{++turn.part->calls, Print(leaves, attributes)};
  const std::string name = std::string(asked.what) + " #" + std::to_string(number.number) + " over '" +
                           std::string(asked.group) + "' (" + FormatBytes(Layout(leaves).payload()) + ")";
  const nccl::Carrier& carrier = turn.part->carrier();
  const nccl::Attendance attendance{name,         carrier.rank(),         carrier.ranks(),
                                    turn.members, turn.part->board.get(), number};
  return ToError(RunLanes(turn, attendance, borrowed.before, lanes, stream));
}

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame) {
  const auto run = [](cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                      ffi::RemainingRets results, std::string_view what, std::string_view group, int64_t iteration,
                      std::string_view messages, std::string_view reduction, ffi::Span<const double> shares) {
    const Asked asked{what, group, iteration, messages, reduction, {shares.begin(), shares.end()}};
    return AllReduce(stream, scratch, args, results, asked, nullptr);
  };
  static const auto handler = ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("what")
                                  .Attr<std::string_view>("group")
                                  .Attr<int64_t>("iteration")
                                  .Attr<std::string_view>("messages")
                                  .Attr<std::string_view>("reduction")
                                  .Attr<ffi::Span<const double>>("shares")
                                  .To(run);
  return handler->Call(frame);
}

}  // namespace jaxcomm
