// The custom call "jaxcomm_collective" on GPUs: an all-reduce of one array over devices of a process. With kind
// "virtual", the rows of an array on one device are the ranks, and the second operand has the delay of each rank.
//
// The device that first reaches a call site creates the ranks of its whole group. Afterwards each device only launches
// its kernel, and the kernels access the memory of all devices.

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
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

// The state that XLA keeps for each call site of each executable.
struct FusedSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  // The device of each rank, and the program that the ranks run.
  struct Group {
    std::vector<int> devices;
    std::shared_ptr<const Program> program;  // null in a group of one rank
  };

  std::string name, axes, plan;
  bool is_virtual = false;
  Reduction reduction = Reduction::kSum;
  std::vector<Group> groups;
  std::map<int32_t, std::pair<size_t, uint32_t>> members;  // group index and rank, by process << 16 | device number
  std::mutex mutex;
  // The created ranks, by group, or by device if the ranks are virtual. The map also keeps the error of a failed
  // creation, so that each group tries only once: if a second try succeeded, some devices would have made fewer calls
  // than others.
  std::map<size_t, Result<std::shared_ptr<Ranks>>> ranks;
};
ffi::TypeId FusedSite::id = {};
ffi::TypeInfo FusedSite::info = ffi::MakeTypeInfo<FusedSite>();

ffi::ErrorOr<std::unique_ptr<FusedSite>> Instantiate(std::string_view name, std::string_view axes,
                                                     std::string_view plan, std::string_view programs,
                                                     std::string_view kind, std::string_view reduction,
                                                     ffi::Span<const int32_t> devices, ffi::Span<const int32_t> sizes) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [](const std::string& message) { return ffi::Unexpected(ToError(InvalidArgument(message))); };
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if ((kind != "all_reduce" && kind != "virtual") || !parsed) {
    return invalid(who + ": GPUs have no '" + std::string(kind) + "' with reduction '" + std::string(reduction) + "'");
  }
  const Result<std::vector<Group>> groups = ParseGroups(who, programs, devices, sizes);
  if (!groups.ok()) return ffi::Unexpected(ToError(groups.status()));
  auto site = std::make_unique<FusedSite>();
  site->name = name;
  site->axes = axes;
  site->plan = plan;
  site->is_virtual = kind == "virtual";
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
      return invalid(who + ": program " + program +
                     " is not registered in this process; load its plan before running a compiled step");
    }
  }
  return site;
}

// One device's part in a call.
struct Part {
  uint32_t rank;                 // the first rank on this device
  std::vector<int> devices;      // the devices that access this device's memory
  std::shared_ptr<Ranks> ranks;  // null if there is nothing to reduce
  int64_t bytes;                 // per rank
  DType dtype;
  const int* delays;  // null unless ranks are virtual
};

Result<Part> Find(FusedSite& site, int32_t device, ffi::RemainingArgs args) {
  const ffi::AnyBuffer x = *args.get<ffi::AnyBuffer>(0);
  const std::optional<DType> dtype = ParseDType(x.element_type());
  if (!dtype) return Status(Code::kUnimplemented, site.name + ": no reduction of this element type");
  Part part{0, {}, nullptr, static_cast<int64_t>(x.size_bytes()), *dtype, nullptr};
  FusedSite::Group group = site.groups[0];
  auto key = static_cast<size_t>(device);
  if (site.is_virtual) {
    const uint32_t ranks = group.program->ranks();
    const auto delays = args.get<ffi::BufferR1<ffi::DataType::S32>>(1);
    if (x.dimensions().size() == 0 || x.dimensions()[0] != ranks || !delays || delays->element_count() != ranks ||
        part.bytes / ranks % 16 != 0) {
      return InvalidArgument("virtual: its operand must have one row, a multiple of 16 bytes, for each of " +
                             std::to_string(ranks) + " ranks, and one delay for each");
    }
    part.bytes /= ranks;
    part.delays = delays->typed_data();
    group.devices.assign(ranks, device);
  } else {
    const int32_t process = TheFusedRuntime().process.load();
    const auto member = site.members.find(process << 16 | device);
    if (member == site.members.end()) {
      return Status(Code::kInternal, site.name + ": GPU " + std::to_string(device) + " is in no group");
    }
    std::tie(key, part.rank) = member->second;
    group = site.groups[key];
    part.devices = group.devices;
  }
  if (!group.program || part.bytes == 0) return part;
  std::lock_guard<std::mutex> lock(site.mutex);
  auto made = site.ranks.find(key);
  if (made == site.ranks.end()) {
    auto ranks = TheFusedRuntime().Make({site.name, site.axes, site.plan, part.bytes}, group.program, group.devices);
    made = site.ranks.emplace(key, std::move(ranks)).first;
  }
  if (!made->second.ok()) return made->second.status();
  part.ranks = made->second.value();
  return part;
}

// Allocates memory and loads the kernel before Execute. In Execute, other devices' kernels would wait for this work.
ffi::Error Initialize(FusedSite* site, int32_t device, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer>) {
  const Result<Part> part = Find(*site, device, args);
  if (!part.ok() || !part.value().ranks) return ToError(part.status());
  return ToError(part.value().ranks->Load(part.value().rank, part.value().dtype, site->reduction));
}

Status Start(FusedSite& site, int32_t device, cudaStream_t stream, ffi::RemainingArgs args, const ffi::AnyBuffer& y) {
  const Result<Part> found = Find(site, device, args);
  if (!found.ok()) return found.status();
  const Part& part = found.value();
  auto* const data = static_cast<std::byte*>(y.untyped_data());
  if (args.get<ffi::AnyBuffer>(0)->untyped_data() != data) {
    return Status(Code::kInternal, site.name + ": operand and result are not the same memory");
  }
  if (!part.ranks) return Status();
  if (const Status reachable = fused::CheckReachable(data, y.size_bytes(), part.devices); !reachable.ok()) {
    return Status(reachable.code(), site.name + " over '" + site.axes + "': " + reachable.message());
  }
  const double deadline = TheFusedRuntime().deadline.load();
  return TheFusedRuntime().Run(*part.ranks, part.rank,
                               {data, part.bytes, part.delays, part.dtype, site.reduction, deadline}, stream);
}

ffi::Error Execute(FusedSite* site, int32_t device, cudaStream_t stream, ffi::RemainingArgs args,
                   ffi::Result<ffi::AnyBuffer> y) {
  return ToError(Start(*site, device, stream, args, *y));
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
                           .Ctx<ffi::State<FusedSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>());
// The handler must not be captured into a CUDA graph: a graph may start two calls in either order. Each call waits for
// the same call on other devices, so different orders on two devices would deadlock.
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<FusedSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommFusedInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<FusedSite>(frame, "jaxcomm.FusedSite");
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommFusedInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommFusedExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
