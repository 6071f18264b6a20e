// The custom call "jaxcomm_collective" on GPUs: an all-reduce of one array over devices of one host, by the fused
// executor.
//
// Which device of a process first comes to a call site makes its ranks, for all of them, and waits for other processes
// if ranks live there; then each device only launches its kernel, and the kernels work in the devices' memory.

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/ffi/groups.h"
#include "cc/ffi/values.h"
#include "cc/gpu/executor/collective_once.h"
#include "cc/gpu/ffi/memory.h"
#include "cc/gpu/ffi/processes.h"
#include "cc/gpu/ffi/runtime.h"
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
  std::map<fused::DeviceKey, Member> members;
  std::mutex mutex;                                                       // of the map alone
  std::map<size_t, fused::CollectiveOnce<std::shared_ptr<Ranks>>> ranks;  // by group
};
ffi::TypeId DevicesSite::id = {};
ffi::TypeInfo DevicesSite::info = ffi::MakeTypeInfo<DevicesSite>();

ffi::ErrorOr<std::unique_ptr<DevicesSite>> Instantiate(std::string_view name, std::string_view axes,
                                                       std::string_view plan, std::string_view programs,
                                                       std::string_view kind, std::string_view reduction,
                                                       ffi::Span<const int32_t> devices,
                                                       ffi::Span<const int32_t> sizes) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [](const std::string& message) { return ffi::Unexpected(ToError(InvalidArgument(message))); };
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

Result<std::shared_ptr<Ranks>> MakeRanks(const DevicesSite& site, size_t group, size_t bytes, DType dtype) {
  Result<fused::Slots> slots = fused::Slots::Find(site.groups[group].devices, ThisProcess().number());
  if (!slots.ok()) return slots.status();
  // The same text in all processes for the same call; they run calls of one text in one order.
  std::string call = site.name + "\n" + site.axes + "\n" + site.plan + "\n" + site.groups[group].program;
  for (const fused::DeviceKey key : site.groups[group].devices) call += "\n" + std::to_string(key);
  call += "\n" + std::to_string(static_cast<int>(site.reduction)) + "\n" + std::to_string(static_cast<int>(dtype)) +
          "\n" + std::to_string(bytes);
  const std::chrono::duration<double> timeout(TheFusedRuntime().deadline.load());
  Result<std::unique_ptr<fused::PeerMemory>> memory = ThisProcess().PeerMemoryOf(
      slots.value(), call, std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout));
  if (!memory.ok()) return memory.status();
  return TheFusedRuntime().Make({site.name, site.axes, site.plan, static_cast<int64_t>(bytes)}, site.programs[group],
                                std::move(slots.value()), std::move(memory.value()));
}

// What a device calls with: its rank, all ranks, and the operand's type.
struct Caller {
  uint32_t rank;
  std::shared_ptr<Ranks> ranks;  // null: it has nobody, or nothing, to reduce with
  DType dtype;
};

Result<Caller> Find(DevicesSite& site, int32_t device, const ffi::AnyBuffer& operand) {
  const Result<Member> found = MemberOn(site, device);
  if (!found.ok()) return found.status();
  const Member member = found.value();
  const std::optional<DType> dtype = ParseDType(operand.element_type());
  if (!dtype) return Status(Code::kUnimplemented, site.name + ": no reduction of this element type");
  const size_t bytes = operand.size_bytes();
  if (!site.programs[member.group] || bytes == 0) return Caller{member.rank, nullptr, *dtype};
  // Not while they connect: a group that waits for another process must not keep this one's other groups from
  // connecting, for which that process may wait.
  std::unique_lock<std::mutex> lock(site.mutex);
  fused::CollectiveOnce<std::shared_ptr<Ranks>>& once = site.ranks[member.group];
  lock.unlock();
  Result<std::shared_ptr<Ranks>> ranks =
      once.Get(member.rank, [&] { return MakeRanks(site, member.group, bytes, *dtype); });
  if (!ranks.ok()) return ranks.status();
  return Caller{member.rank, ranks.value(), *dtype};
}

// So that execute allocates and loads nothing while other devices' kernels wait.
ffi::Error Initialize(DevicesSite* site, int32_t device, ffi::AnyBuffer operand, ffi::Result<ffi::AnyBuffer>) {
  const Result<Caller> caller = Find(*site, device, operand);
  if (!caller.ok() || !caller.value().ranks) return ToError(caller.status());
  return ToError(caller.value().ranks->Load(caller.value().rank, caller.value().dtype, site->reduction));
}

Status Start(DevicesSite& site, int32_t device, cudaStream_t stream, const ffi::AnyBuffer& operand,
             const ffi::AnyBuffer& result) {
  const Result<Caller> found = Find(site, device, operand);
  if (!found.ok()) return found.status();
  const Caller& caller = found.value();
  const auto bytes = static_cast<int64_t>(result.size_bytes());
  if (operand.size_bytes() != result.size_bytes()) {
    return Status(Code::kInternal, site.name + ": operand and result do not fit");
  }
  auto* const data = static_cast<std::byte*>(result.untyped_data());
  if (caller.ranks) {
    if (const Status reachable = CheckReachable(data); !reachable.ok()) {
      return Status(reachable.code(), site.name + " over '" + site.axes + "': " + reachable.message());
    }
    if (Status status = caller.ranks->CheckReach(caller.rank, data, bytes); !status.ok()) return status;
  }
  if (operand.untyped_data() != result.untyped_data()) {
    const cudaError_t error =
        cudaMemcpyAsync(data, operand.untyped_data(), operand.size_bytes(), cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) return Status(Code::kInternal, site.name + ": " + cudaGetErrorString(error));
  }
  if (!caller.ranks) return Status();
  return TheFusedRuntime().Run(*caller.ranks, caller.rank,
                               {data, bytes, nullptr, caller.dtype, site.reduction, TheFusedRuntime().deadline.load()},
                               stream);
}

ffi::Error Execute(DevicesSite* site, int32_t device, cudaStream_t stream, ffi::AnyBuffer operand,
                   ffi::Result<ffi::AnyBuffer> result) {
  return ToError(Start(*site, device, stream, operand, *result));
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
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());
// Not for CUDA graphs: those would be free to start two calls in any order, and each waits for the same one elsewhere.
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<DevicesSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<DevicesSite>(frame, "jaxcomm.DevicesSite");
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
