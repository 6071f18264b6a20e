// The custom call "jaxcomm_messages_xla": an all-reduce by messages over a communicator that XLA lends.
//
// The ranks tell each other their places in it once, over itself.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/ffi/cuda/messages.h"
#include "cc/ffi/lender.h"
#include "cc/ffi/values.h"
#include "cc/nccl/settle.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

std::atomic<Lend*> the_lender{nullptr};

// Asks the lender for what the frame's stage is about.
Status Ask(const XLA_FFI_CallFrame* frame, ffi::Span<const int64_t> positions, ffi::Span<const int64_t> sizes,
           void** communicator) {
  const DeviceGroups groups{positions.begin(), sizes.begin(), static_cast<int64_t>(sizes.size())};
  char error[1024];
  if (the_lender.load()(frame, &groups, communicator, error, sizeof(error)) == 0) return Status();
  return Status(Code::kInternal, std::string("messages: ") + error);
}

// Has each rank say who it is, in memory that is there for as long as NCCL may write to it.
Status Tell(const Part& part, nccl::Comm comm, cudaStream_t stream, nccl::Clock::time_point deadline) {
  nccl::Loan& loan = *part.loan;
  std::byte* const memory = part.numbers->get();
  const nccl::Library& nccl = loan.library();
  std::vector<uint32_t> words(loan.ranks());
  const size_t bytes = words.size() * sizeof(uint32_t);
  std::byte* const mine = memory + bytes;
  const uint32_t rank = loan.rank();
  cudaError_t error = cudaMemcpyAsync(mine, &rank, sizeof(rank), cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return CudaError("writing a rank's number", error);
  constexpr char kWhat[] = "telling the ranks' places";
  const nccl::Outcome begun = nccl.AllGather(mine, memory, sizeof(rank), nccl::kInt8, comm, stream);
  if (begun != nccl::kSuccess && begun != nccl::kInProgress) return nccl.Error(kWhat, begun, comm);
  Status status = nccl::Settle(nccl, comm, kWhat, "it was not launched", deadline);
  if (!status.ok()) return status;
  Event told;
  if (status = told.Record(stream); !status.ok()) return status;
  for (nccl::Pause pause; (error = told.Query()) == cudaErrorNotReady; pause.Wait()) {
    if (nccl::Clock::now() >= deadline) return Status(Code::kDeadlineExceeded, "the ranks have not told their places");
  }
  if (error == cudaSuccess) error = cudaMemcpyAsync(words.data(), memory, bytes, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  return error == cudaSuccess ? loan.Learn(words) : CudaError("reading the ranks' numbers", error);
}

}  // namespace

// Where communicators come from; called before the custom call is registered.
JAXCOMM_EXPORT void jaxcomm_nccl_lender(void* lend) { the_lender = reinterpret_cast<Lend*>(lend); }

// The call's stage prepare.
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessagesPrepare(XLA_FFI_CallFrame* frame) {
  const auto prepare = [frame](ffi::Dictionary attributes) {
    const auto positions = attributes.get<ffi::Span<const int64_t>>("groups");
    const auto sizes = attributes.get<ffi::Span<const int64_t>>("sizes");
    if (!positions || !sizes) return ToError(InvalidArgument("messages: the call has no groups"));
    void* none = nullptr;
    return ToError(Ask(frame, *positions, *sizes, &none));
  };
  return ffi::Ffi::BindPrepare().Attrs().To(prepare)->Call(frame);
}

// The call itself.
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessagesLent(XLA_FFI_CallFrame* frame) {
  const auto run = [frame](cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                           ffi::RemainingRets results, std::string_view what, std::string_view group,
                           std::string_view messages, std::string_view reduction, ffi::Span<const int64_t> groups,
                           ffi::Span<const int64_t> sizes) {
    const Borrow borrow = [&](Part& part, Borrowed& borrowed) {
      void* lent = nullptr;
      if (Status status = Ask(frame, groups, sizes, &lent); !status.ok()) return status;
      borrowed.comm = static_cast<nccl::Comm>(lent);
      if (Status status = part.loan->Take(borrowed.comm); !status.ok() || !part.loan->places().empty()) return status;
      borrowed.before = [&part, stream, comm = borrowed.comm](nccl::Clock::time_point deadline) {
        return Tell(part, comm, stream, deadline);
      };
      return Status();
    };
    return AllReduce(stream, scratch, args, results, {what, group, -1, messages, reduction, {1.0}}, borrow);
  };
  const auto handler = ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("what")
                           .Attr<std::string_view>("group")
                           .Attr<std::string_view>("messages")
                           .Attr<std::string_view>("reduction")
                           .Attr<ffi::Span<const int64_t>>("groups")
                           .Attr<ffi::Span<const int64_t>>("sizes")
                           .To(run);
  return handler->Call(frame);
}

}  // namespace jaxcomm
