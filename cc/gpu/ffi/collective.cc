// The custom calls of the fused executor on GPUs: "jaxcomm_collective" is an all-reduce of one array over devices of a
// process, "jaxcomm_virtual" one of an array's rows on one device, as if each were a rank's.
//
// The first device of a group that comes to a call site makes the group's ranks, for all of them; then each device only
// launches its kernel, and the kernels work in the devices' memory.

#include <cuda_runtime_api.h>

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
#include "cc/gpu/executor/reach.h"
#include "cc/gpu/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using fused::Ranks;
using Stream = ffi::PlatformStream<cudaStream_t>;
using Delays = ffi::BufferR1<ffi::DataType::S32>;

// What XLA keeps for each call site of each executable.
struct FusedSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  // Where the ranks of a group run, by rank, and what.
  struct Group {
    std::vector<int> devices;
    std::shared_ptr<const Program> program;  // null in a group of one rank
  };

  std::string name, axes, plan;
  Reduction reduction = Reduction::kSum;
  std::vector<Group> groups;
  std::map<int32_t, std::pair<size_t, uint32_t>> members;  // group and rank, by process << 16 | its number of a device
  std::mutex mutex;
  // By group, or of virtual ranks by device, once made. A failure stays: if a second try succeeded, some ranks would
  // have made fewer calls than others.
  std::map<size_t, Result<std::shared_ptr<Ranks>>> ranks;
};
ffi::TypeId FusedSite::id = {};
ffi::TypeInfo FusedSite::info = ffi::MakeTypeInfo<FusedSite>();

using MadeSite = ffi::ErrorOr<std::unique_ptr<FusedSite>>;

MadeSite Invalid(const std::string& message) { return ffi::Unexpected(ToError(InvalidArgument(message))); }

MadeSite Instantiate(std::string_view name, std::string_view axes, std::string_view plan, std::string_view programs,
                     std::string_view kind, std::string_view reduction, ffi::Span<const int32_t> devices,
                     ffi::Span<const int32_t> sizes) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (kind != "all_reduce" || !parsed) {
    return Invalid(who + ": GPUs have no '" + std::string(kind) + "' with reduction '" + std::string(reduction) + "'");
  }
  const Result<std::vector<Group>> groups = ParseGroups(who, programs, devices, sizes);
  if (!groups.ok()) return ffi::Unexpected(ToError(groups.status()));
  auto site = std::make_unique<FusedSite>();
  site->name = name;
  site->axes = axes;
  site->plan = plan;
  site->reduction = *parsed;
  for (const auto& [program, members] : groups.value()) {
    FusedSite::Group& group = site->groups.emplace_back();
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      site->members[members[rank]] = {site->groups.size() - 1, rank};
      group.devices.push_back(members[rank] & 0xffff);
    }
    if (members.size() == 1) continue;
    group.program = TheFusedRuntime().programs.Find(program);
    if (!group.program) {
      return Invalid(who + ": program " + program +
                     " is not registered in this process; load its plan before running a compiled step");
    }
  }
  return site;
}

MadeSite InstantiateVirtual(std::string_view plan, std::string_view program, std::string_view reduction) {
  auto site = std::make_unique<FusedSite>();
  site->name = "psum";
  site->axes = "virtual";
  site->plan = plan;
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return Invalid("virtual: unknown reduction '" + std::string(reduction) + "'");
  site->reduction = *parsed;
  site->groups.push_back({{}, TheFusedRuntime().programs.Find(std::string(program))});
  if (!site->groups[0].program) return Invalid("virtual: program " + std::string(program) + " is not registered");
  return site;
}

// A group's ranks, made when they are first asked for.
Result<std::shared_ptr<Ranks>> RanksOf(FusedSite& site, size_t key, const FusedSite::Group& group, int64_t bytes) {
  std::lock_guard<std::mutex> lock(site.mutex);
  auto made = site.ranks.find(key);
  if (made == site.ranks.end()) {
    auto ranks = TheFusedRuntime().Make({site.name, site.axes, site.plan, bytes}, group.program, group.devices);
    made = site.ranks.emplace(key, std::move(ranks)).first;
  }
  return made->second;
}

// One device's part in a call.
struct Part {
  const FusedSite::Group* group;
  uint32_t rank;
  std::shared_ptr<Ranks> ranks;  // null: it has nothing to reduce
  int64_t bytes;                 // of one rank
  DType dtype;
};

Result<Part> Find(FusedSite& site, int32_t device, const ffi::AnyBuffer& x) {
  const int32_t process = TheFusedRuntime().process.load();
  const auto member = site.members.find(process << 16 | device);
  if (member == site.members.end()) {
    return Status(Code::kInternal, site.name + ": GPU " + std::to_string(device) + " of process " +
                                       std::to_string(process) + " is in no group");
  }
  const std::optional<DType> dtype = ParseDType(x.element_type());
  if (!dtype) return Status(Code::kUnimplemented, site.name + ": no reduction of this element type");
  const FusedSite::Group& group = site.groups[member->second.first];
  Part part{&group, member->second.second, nullptr, static_cast<int64_t>(x.size_bytes()), *dtype};
  if (!group.program || part.bytes == 0) return part;
  const Result<std::shared_ptr<Ranks>> ranks = RanksOf(site, member->second.first, group, part.bytes);
  if (!ranks.ok()) return ranks.status();
  part.ranks = ranks.value();
  return part;
}

Result<Part> FindVirtual(FusedSite& site, int32_t device, const ffi::AnyBuffer& x, const Delays& delays) {
  const uint32_t ranks = site.groups[0].program->ranks();
  const std::optional<DType> dtype = ParseDType(x.element_type());
  const auto dimensions = x.dimensions();
  if (!dtype) return Status(Code::kUnimplemented, "virtual: no reduction of this element type");
  if (dimensions.size() == 0 || dimensions[0] != ranks || delays.element_count() != ranks ||
      x.size_bytes() / ranks % 16 != 0) {
    return InvalidArgument("virtual: its operand must be one row of whole 16 bytes for each of " +
                           std::to_string(ranks) + " ranks, and a delay for each");
  }
  const auto bytes = static_cast<int64_t>(x.size_bytes() / ranks);
  const FusedSite::Group group{std::vector<int>(ranks, device), site.groups[0].program};
  const Result<std::shared_ptr<Ranks>> made = RanksOf(site, static_cast<size_t>(device), group, bytes);
  if (!made.ok()) return made.status();
  return Part{&site.groups[0], /*rank=*/0, made.value(), bytes, *dtype};
}

// So that execute allocates and loads nothing while other devices' kernels wait.
ffi::Error Load(const FusedSite& site, const Result<Part>& part) {
  if (!part.ok() || !part.value().ranks) return ToError(part.status());
  return ToError(part.value().ranks->Load(part.value().rank, part.value().dtype, site.reduction));
}

Status Start(const FusedSite& site, const Result<Part>& found, cudaStream_t stream, const ffi::AnyBuffer& x,
             const ffi::AnyBuffer& y, const int* delays) {
  if (!found.ok()) return found.status();
  const Part& part = found.value();
  auto* const data = static_cast<std::byte*>(y.untyped_data());
  if (part.ranks) {
    const Status reachable = fused::CheckReachable(data, y.size_bytes(), part.group->devices);
    if (!reachable.ok()) {
      return Status(reachable.code(), site.name + " over '" + site.axes + "': " + reachable.message());
    }
  }
  if (x.untyped_data() != y.untyped_data()) {
    const cudaError_t error = cudaMemcpyAsync(data, x.untyped_data(), x.size_bytes(), cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) return Status(Code::kInternal, site.name + ": " + cudaGetErrorString(error));
  }
  if (!part.ranks) return Status();
  const double deadline = TheFusedRuntime().deadline.load();
  return TheFusedRuntime().Run(*part.ranks, part.rank, {data, part.bytes, delays, part.dtype, site.reduction, deadline},
                               stream);
}

ffi::Error Initialize(FusedSite* site, int32_t device, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer>) {
  return Load(*site, Find(*site, device, x));
}
ffi::Error InitializeVirtual(FusedSite* site, int32_t device, ffi::AnyBuffer x, Delays delays,
                             ffi::Result<ffi::AnyBuffer>) {
  return Load(*site, FindVirtual(*site, device, x, delays));
}
ffi::Error Execute(FusedSite* site, int32_t device, cudaStream_t stream, ffi::AnyBuffer x,
                   ffi::Result<ffi::AnyBuffer> y) {
  return ToError(Start(*site, Find(*site, device, x), stream, x, *y, nullptr));
}
ffi::Error ExecuteVirtual(FusedSite* site, int32_t device, cudaStream_t stream, ffi::AnyBuffer x, Delays delays,
                          ffi::Result<ffi::AnyBuffer> y) {
  return ToError(Start(*site, FindVirtual(*site, device, x, delays), stream, x, *y, delays.typed_data()));
}

// A stage takes all attributes or none.
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
XLA_FFI_DEFINE_HANDLER(
    kInstantiateVirtual, InstantiateVirtual,
    ffi::Ffi::BindInstantiate().Attr<std::string_view>("plan").Attr<std::string_view>("program").Attr<std::string_view>(
        "reduction"));

constexpr auto kInit = ffi::ExecutionStage::kInitialize;
using State = ffi::State<FusedSite>;
using Any = ffi::AnyBuffer;
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<kInit>().Ctx<State>().Ctx<ffi::DeviceOrdinal>().Arg<Any>().Ret<Any>());
XLA_FFI_DEFINE_HANDLER(
    kInitializeVirtual, InitializeVirtual,
    ffi::Ffi::Bind<kInit>().Ctx<State>().Ctx<ffi::DeviceOrdinal>().Arg<Any>().Arg<Delays>().Ret<Any>());
// Not for CUDA graphs: those would be free to start two calls in any order, and each waits for the same one elsewhere.
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind().Ctx<State>().Ctx<ffi::DeviceOrdinal>().Ctx<Stream>().Arg<Any>().Ret<Any>());
XLA_FFI_DEFINE_HANDLER(
    kExecuteVirtual, ExecuteVirtual,
    ffi::Ffi::Bind().Ctx<State>().Ctx<ffi::DeviceOrdinal>().Ctx<Stream>().Arg<Any>().Arg<Delays>().Ret<Any>());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<FusedSite>(frame, "jaxcomm.FusedSite");
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDevicesExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<FusedSite>(frame, "jaxcomm.FusedSite");
  return error != nullptr ? error : kInstantiateVirtual(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualInitialize(XLA_FFI_CallFrame* frame) { return kInitializeVirtual(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualExecute(XLA_FFI_CallFrame* frame) { return kExecuteVirtual(frame); }

}  // namespace jaxcomm
