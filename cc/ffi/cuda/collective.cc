// The custom call "jaxcomm_collective" on GPUs: all-reduces over devices of one host, by the fused executor.
//
// Which device of a process first comes to a call site makes its ranks, for all of them, and waits for other processes
// if ranks live there; then each device only launches its kernel, and the kernels meet in the devices' memory.

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/executor/cuda/attempts.h"
#include "cc/ffi/cuda/memory.h"
#include "cc/ffi/cuda/processes.h"
#include "cc/ffi/cuda/runtime.h"
#include "cc/ffi/groups.h"
#include "cc/ffi/values.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using fused::Ranks;

struct Member {
  size_t group;
  uint32_t rank;
};

// What XLA keeps for each call site of each executable.
struct DevicesSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::string name, axes, plan;
  Reduction reduction = Reduction::kSum;
  std::vector<Group> groups;
  std::vector<std::shared_ptr<const Program>> programs;  // by group; none in a group of one rank
  std::map<fused::Seat, Member> members;
  std::mutex mutex;                                                                    // of the map alone
  std::map<std::pair<size_t, size_t>, fused::Attempts<std::shared_ptr<Ranks>>> ranks;  // by group and operand
};
ffi::TypeId DevicesSite::id = {};
ffi::TypeInfo DevicesSite::info = ffi::MakeTypeInfo<DevicesSite>();

ffi::ErrorOr<std::unique_ptr<DevicesSite>> Instantiate(std::string_view name, std::string_view axes,
                                                       std::string_view plan, std::string_view programs,
                                                       std::string_view kind, std::string_view reduction,
                                                       ffi::Span<const int32_t> devices,
                                                       ffi::Span<const int32_t> sizes) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [](const std::string& what) { return ffi::Unexpected(ToError(InvalidArgument(what))); };
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (kind != "all_reduce" || !parsed) {
    return invalid(who + ": GPUs have no '" + std::string(kind) + "' with reduction '" + std::string(reduction) + "'");
  }
  Result<std::vector<Group>> groups = ParseGroups(who, programs, devices, sizes);
  if (!groups.ok()) return ffi::Unexpected(ToError(groups.status()));
  auto site = std::make_unique<DevicesSite>();
  site->name = name;
  site->axes = axes;
  site->plan = plan;
  site->reduction = *parsed;
  site->groups = std::move(groups.value());
  for (size_t group = 0; group < site->groups.size(); ++group) {
    const auto& [program, members] = site->groups[group];
    for (uint32_t rank = 0; rank < members.size(); ++rank) site->members[members[rank]] = {group, rank};
    site->programs.push_back(members.size() > 1 ? TheFusedRuntime().programs.Find(program) : nullptr);
    if (members.size() > 1 && !site->programs.back()) {
      return invalid(who + ": program " + program +
                     " is not registered in this process; load its plan before running a compiled step");
    }
  }
  return site;
}

Result<Member> MemberOn(const DevicesSite& site, int32_t device) {
  const auto process = static_cast<int32_t>(ThisProcess().number());
  const auto member = site.members.find(process << 16 | device);
  if (member != site.members.end()) return member->second;
  return Status(Code::kInternal, site.name + ": GPU " + std::to_string(device) + " of process " +
                                     std::to_string(process) + " is in no group");
}

Result<std::shared_ptr<Ranks>> MakeRanks(const DevicesSite& site, size_t group, size_t operand, size_t bytes,
                                         DType dtype) {
  Result<fused::Places> places = fused::Places::Find(site.groups[group].devices, ThisProcess().number());
  if (!places.ok()) return places.status();
  // All processes say the same of a call, and run those of which they say the same in one order.
  std::string what = site.name + "\n" + site.axes + "\n" + site.plan + "\n" + site.groups[group].program;
  for (const fused::Seat seat : site.groups[group].devices) what += "\n" + std::to_string(seat);
  what += "\n" + std::to_string(static_cast<int>(site.reduction)) + "\n" + std::to_string(static_cast<int>(dtype)) +
          "\n" + std::to_string(operand) + "\n" + std::to_string(bytes);
  const std::chrono::duration<double> patience(TheFusedRuntime().deadline.load());
  Result<std::unique_ptr<fused::Meeting>> meeting = ThisProcess().MeetingOf(
      places.value(), what, std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience));
  if (!meeting.ok()) return meeting.status();
  return TheFusedRuntime().Make({site.name, site.axes, site.plan, static_cast<int64_t>(bytes)}, site.programs[group],
                                std::move(places.value()), std::move(meeting.value()));
}

Result<std::shared_ptr<Ranks>> RanksOf(DevicesSite& site, const Member& member, size_t operand, size_t bytes,
                                       DType dtype) {
  // Not while they meet: a group that waits for another process must not keep this one's other groups from meeting,
  // for which that process may wait.
  std::unique_lock<std::mutex> lock(site.mutex);
  fused::Attempts<std::shared_ptr<Ranks>>& attempts = site.ranks[{member.group, operand}];
  lock.unlock();
  return attempts.Ask(member.rank, [&] { return MakeRanks(site, member.group, operand, bytes, dtype); });
}

// Calls start(operand, its ranks, data, bytes, type) for each operand of a device that has others to reduce with.
template <typename Start>
Status ForEachOperand(DevicesSite& site, const Member& member, const ffi::RemainingArgs& args, Start start) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(operand.element_type());
    if (!dtype) return Status(Code::kUnimplemented, site.name + ": no reduction of this element type");
    if (!site.programs[member.group] || operand.size_bytes() == 0) continue;
    Result<std::shared_ptr<Ranks>> ranks = RanksOf(site, member, i, operand.size_bytes(), *dtype);
    if (!ranks.ok()) return ranks.status();
    const Status status = start(i, *ranks.value(), *dtype);
    if (!status.ok()) return status;
  }
  return Status();
}

// So that execute allocates and loads nothing, while other devices' kernels wait or this one's is captured.
ffi::Error Initialize(DevicesSite* site, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets) {
  const Result<Member> member = MemberOn(*site, device);
  if (!member.ok()) return ToError(member.status());
  return ToError(ForEachOperand(*site, member.value(), args, [&](size_t, const Ranks& ranks, DType dtype) {
    return ranks.Load(member.value().rank, dtype, site->reduction);
  }));
}

Status Start(DevicesSite& site, int32_t device, cudaStream_t stream, const ffi::RemainingArgs& args,
             const ffi::RemainingRets& rets) {
  const Result<Member> member = MemberOn(site, device);
  if (!member.ok()) return member.status();
  const uint32_t rank = member.value().rank;
  if (args.size() != rets.size()) return Status(Code::kInternal, site.name + ": operands and results differ");
  for (size_t i = 0; i < args.size(); ++i) {
    if (args.get<ffi::AnyBuffer>(i)->size_bytes() != (*rets.get<ffi::AnyBuffer>(i))->size_bytes()) {
      return Status(Code::kInternal, site.name + ": operand and result " + std::to_string(i) + " do not fit");
    }
  }
  // Before any launch: either all operands are launched, as on the other devices, or none.
  Status status = ForEachOperand(site, member.value(), args, [&](size_t i, const Ranks& ranks, DType) {
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    const Status reachable = CheckReachable(result.untyped_data());
    if (!reachable.ok())
      return Status(reachable.code(), site.name + " over '" + site.axes + "': " + reachable.message());
    return ranks.CheckReach(rank, static_cast<const std::byte*>(result.untyped_data()),
                            static_cast<int64_t>(result.size_bytes()));
  });
  if (!status.ok()) return status;
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i), result = **rets.get<ffi::AnyBuffer>(i);
    if (operand.untyped_data() == result.untyped_data()) continue;
    const cudaError_t error = cudaMemcpyAsync(result.untyped_data(), operand.untyped_data(), operand.size_bytes(),
                                              cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) return Status(Code::kInternal, site.name + ": " + cudaGetErrorString(error));
  }
  // Every operand is launched, whatever becomes of those before it: the other devices launch all, too.
  Status first;
  status = ForEachOperand(site, member.value(), args, [&](size_t i, Ranks& ranks, DType dtype) {
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    const Status run = TheFusedRuntime().Run(
        ranks, rank,
        {static_cast<std::byte*>(result.untyped_data()), static_cast<int64_t>(result.size_bytes()), nullptr, dtype,
         site.reduction, TheFusedRuntime().deadline.load()},
        stream);
    if (first.ok()) first = run;
    return Status();
  });
  return status.ok() ? first : status;
}

ffi::Error Execute(DevicesSite* site, int32_t device, cudaStream_t stream, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  return ToError(Start(*site, device, stream, args, rets));
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("name")
                           .Attr<std::string_view>("axes")
                           .Attr<std::string_view>("plan")
                           .Attr<std::string_view>("programs")
                           .Attr<std::string_view>("kind")
                           .Attr<std::string_view>("reduction")
                           .Attr<ffi::Span<const int32_t>>("groups")
                           .Attr<ffi::Span<const int32_t>>("sizes"));
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::State<DevicesSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());
auto BindExecute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<DevicesSite>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .RemainingArgs()
      .RemainingRets();
}
XLA_FFI_DEFINE_HANDLER(kExecute, Execute, BindExecute());
XLA_FFI_DEFINE_HANDLER(kCapture, Execute, BindExecute(), {ffi::Traits::kCmdBufferCompatible});

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<DevicesSite>(frame, "jaxcomm.DevicesSite");
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }
// The same, declared fit for CUDA graphs.
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesCapture(XLA_FFI_CallFrame* frame) { return kCapture(frame); }

}  // namespace jaxcomm
