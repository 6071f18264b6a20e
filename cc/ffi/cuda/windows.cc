// The custom call "jaxcomm_windows": all-reduces of a group by the fused executor, in windows that NCCL lets all see.
//
// Ranks meet when XLA initializes a call, once in the group's life for each program, type and size of an operand; that
// waits for the other ranks. Executing only copies and launches. Operands that are alike take turns in one window, as
// all of a device's calls are on one stream.

#include "cc/executor/cuda/windows.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/ffi/cuda/memberships.h"
#include "cc/ffi/cuda/runtime.h"
#include "cc/ffi/values.h"
#include "cc/nccl/attendance.h"
#include "cc/nccl/settle.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

// What XLA keeps for each call site of each executable.
struct WindowsSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::string what, group, plan, program_name;
  std::shared_ptr<const Program> program;
  Reduction reduction;
  bool multicast;
};
ffi::TypeId WindowsSite::id = {};
ffi::TypeInfo WindowsSite::info = ffi::MakeTypeInfo<WindowsSite>();

ffi::ErrorOr<std::unique_ptr<WindowsSite>> Instantiate(std::string_view what, std::string_view group,
                                                       std::string_view plan, std::string_view program,
                                                       std::string_view reduction, bool multicast) {
  const std::string who = std::string(what) + " over '" + std::string(group) + "': ";
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return ffi::Unexpected(ToError(InvalidArgument(who + "no reduction '" + std::string(reduction) + "'")));
  auto site = std::make_unique<WindowsSite>();
  site->what = what;
  site->group = group;
  site->plan = plan;
  site->program_name = program;
  site->program = TheFusedRuntime().programs.Find(site->program_name);
  site->reduction = *parsed;
  site->multicast = multicast;
  if (!site->program) {
    return ffi::Unexpected(ToError(InvalidArgument(who + "program " + site->program_name +
                                                   " is not registered in this process; trace the step here again")));
  }
  return site;
}

// What all ranks have in common that meet.
std::string Subject(const WindowsSite& site, DType dtype, size_t bytes) {
  return site.what + ";" + site.program_name + ";" + std::to_string(static_cast<int>(dtype)) + ";" +
         std::to_string(bytes) + ";" + std::to_string(site.multicast);
}

// This rank's window for operands of so many bytes, and whom it reaches by it; waits for the others.
Result<Met> Meet(const WindowsSite& site, const std::string& subject, const Hold& hold, size_t bytes) {
  Part& part = *hold.part;
  const int device = hold.device;
  const nccl::Communicators& all = *part.communicators;
  if (site.program->ranks() != all.ranks()) {
    return InvalidArgument(site.what + ": the schedule is for " + std::to_string(site.program->ranks()) +
                           " ranks; group '" + site.group + "' has " + std::to_string(all.ranks()));
  }
  if (site.multicast) {
    if (Status status = fused::CheckMulticast(device); !status.ok()) return status;
  }
  std::vector<fused::Seat> seats;
  for (uint32_t rank = 0; rank < all.ranks(); ++rank) {
    seats.push_back(static_cast<fused::Seat>(rank << 16 | static_cast<uint32_t>(device)));
  }
  Result<fused::Places> places = fused::Places::Find(seats, /*process=*/all.rank());
  if (!places.ok()) return places.status();
  const nccl::CallNumber number{++part.calls, nccl::PrintOf(subject)};
  auto windows = std::make_unique<fused::Windows>(
      part.communicators, device, bytes,
      nccl::Attendance{"its meeting", all.rank(), all.ranks(), all.everybody(), part.board.get(), number},
      nccl::After(hold.deadline_s), site.multicast);
  const fused::Windows& meeting = *windows;
  Result<std::shared_ptr<fused::Ranks>> made =
      TheFusedRuntime().Make({site.what, site.group, site.plan, static_cast<int64_t>(bytes)}, site.program,
                             std::move(places.value()), std::move(windows));
  if (made.ok()) return Met{made.value(), meeting.data()};
  // A fault of this rank alone: without its window, NCCL would place its next ones elsewhere than the others'.
  return made.status().code() == Code::kInternal ? part.communicators->Fail(made.status()) : made.status();
}

ffi::Error Initialize(WindowsSite* site, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets) {
  Result<Hold> hold = TakePart(device, site->group);
  if (!hold.ok()) return ToError(hold.status());
  Part& part = *hold.value().part;
  if (!part.communicators) {
    return ToError(InvalidArgument(site->what + " over '" + site->group + "': its communicators are XLA's"));
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(operand.element_type());
    if (!dtype) return ToError(Status(Code::kUnimplemented, site->what + ": no reduction of this element type"));
    const std::string subject = Subject(*site, *dtype, operand.size_bytes());
    if (operand.size_bytes() == 0 || part.windows.count(subject) > 0) continue;
    Result<Met> met = Meet(*site, subject, hold.value(), operand.size_bytes());
    if (!met.ok()) return ToError(met.status());
    const Met& kept = part.windows[subject] = std::move(met.value());
    // Before any launch, for which others would wait.
    const Status loaded = kept.ranks->Load(part.communicators->rank(), *dtype, site->reduction);
    if (!loaded.ok()) return ToError(loaded);
  }
  return ffi::Error::Success();
}

// Reduces one operand in this rank's window.
Status Reduce(const WindowsSite& site, const Hold& hold, const Met& met, ffi::AnyBuffer from, ffi::AnyBuffer to,
              DType dtype, cudaStream_t stream) {
  const auto copy = [&](void* target, const void* source) {
    const cudaError_t error = cudaMemcpyAsync(target, source, from.size_bytes(), cudaMemcpyDeviceToDevice, stream);
    return error == cudaSuccess ? Status() : Status(Code::kInternal, site.what + ": " + cudaGetErrorString(error));
  };
  const Status copied = copy(met.data, from.untyped_data());
  // The other ranks launch, whatever has gone wrong here.
  const Status run = TheFusedRuntime().Run(
      *met.ranks, hold.part->communicators->rank(),
      {met.data, static_cast<int64_t>(from.size_bytes()), nullptr, dtype, site.reduction, hold.deadline_s}, stream);
  if (!copied.ok()) return copied;
  return run.ok() ? copy(to.untyped_data(), met.data) : run;
}

ffi::Error Execute(WindowsSite* site, int32_t device, cudaStream_t stream, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const Result<Hold> hold = TakePart(device, site->group);
  if (!hold.ok()) return ToError(hold.status());
  const Part& part = *hold.value().part;
  Status first;
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer from = *args.get<ffi::AnyBuffer>(i), to = **rets.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(from.element_type());
    if (from.size_bytes() == 0) continue;
    if (!dtype) return ToError(Status(Code::kUnimplemented, site->what + ": no reduction of this element type"));
    const auto met = part.windows.find(Subject(*site, *dtype, from.size_bytes()));
    const bool fits = met != part.windows.end() && from.size_bytes() == to.size_bytes();
    const Status status = fits ? Reduce(*site, hold.value(), met->second, from, to, *dtype, stream)
                               : Status(Code::kInternal, site->what + " over '" + site->group + "': operand " +
                                                             std::to_string(i) + " was not there when the ranks met");
    if (first.ok()) first = status;
  }
  return ToError(first);
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("what")
                           .Attr<std::string_view>("group")
                           .Attr<std::string_view>("plan")
                           .Attr<std::string_view>("program")
                           .Attr<std::string_view>("reduction")
                           .Attr<bool>("multicast"));
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::State<WindowsSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<WindowsSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommWindowsInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<WindowsSite>(frame, "jaxcomm.WindowsSite");
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommWindowsInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommWindowsExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
