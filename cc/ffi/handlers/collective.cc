// The custom call "jaxcomm_collective". Instantiate decodes a record of the call sites and makes the call sites.
// Execute starts the rank's call and returns the call's future.

#include <exception>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/ffi/handlers/buffers.h"
#include "cc/ffi/runtime.h"
#include "cc/ffi/sites/call_sites.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

// XLA keeps one state for each custom call of each executable.
struct CollectiveState {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::unique_ptr<CallSites> sites;
};
ffi::TypeId CollectiveState::id = {};
ffi::TypeInfo CollectiveState::info = ffi::MakeTypeInfo<CollectiveState>();

ffi::ErrorOr<std::unique_ptr<CollectiveState>> Instantiate(std::string_view site) try {
  Result<SiteRecord> record = SiteRecord::Decode(site);
  if (!record.ok()) return ffi::Unexpected(ToError(record.status()));
  Result<std::unique_ptr<CallSites>> sites = CallSites::Make(std::move(record.value()));
  if (!sites.ok()) return ffi::Unexpected(ToError(sites.status()));
  return std::make_unique<CollectiveState>(CollectiveState{std::move(sites.value())});
} catch (const std::exception& error) {
  return ffi::Unexpected(ToError(Status(Code::kInternal, std::string("a call site's record: ") + error.what())));
}

// Reads the rank's buffers. The types and sizes of the first call's buffers determine the site's leaves.
Status Read(const CallSites& sites, const CallSites::Rank& rank, const ffi::RemainingArgs& args,
            const ffi::RemainingRets& rets, Buffers& buffers) try {
  std::vector<Leaf> leaves;
  Status status = ReadBuffers(sites.name(), sites.kind(), sites.is_in_place(), rank.ranks, args, rets, leaves, buffers);
  if (status.ok()) status = rank.site->TakeLeading(leaves, buffers);
  return status.ok() ? rank.site->SetLeaves(leaves, TheExecutor().stats()) : status;
} catch (const std::exception& error) {
  return Status(Code::kInternal, sites.who() + ": " + error.what());
}

Status Start(CallSites& sites, int64_t run, int32_t device, const ffi::RemainingArgs& args,
             const ffi::RemainingRets& rets, ffi::Promise promise) {
  const Result<CallSites::Rank> found = sites.Find(device);
  if (!found.ok()) return found.status();
  const CallSites::Rank& rank = found.value();
  if (!rank.site) {
    HandOn(args, rets);
    promise.SetAvailable();
    return Status();
  }
  Buffers buffers;
  Status status = Read(sites, rank, args, rets, buffers);
  if (status.ok()) {
    rank.site->Arrive(TheExecutor(), run, rank.rank, std::move(buffers), Keep(promise));
  } else {
    rank.site->Refuse(TheExecutor(), run, rank.rank, status);
  }
  return status;
}

ffi::Future Execute(CollectiveState* state, ffi::RunId run, int32_t device, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  return Begin(
      [&](const ffi::Promise& promise) { return Start(*state->sites, run.run_id, device, args, rets, promise); });
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attr<std::string_view>("site"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CollectiveState>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommCollectiveInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<CollectiveState>(frame, "jaxcomm.Collective");
  return error != nullptr ? error : kInstantiate(frame);
}

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommCollectiveExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
