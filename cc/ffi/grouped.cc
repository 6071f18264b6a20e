// The custom call "jaxcomm_grouped": an allreduce in groups that its first operand says. That operand, the group of
// every rank, is handed on as the first result.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/executor/grouped_site.h"
#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

struct GroupedSlot {
  uint32_t rank = 0;
  std::shared_ptr<GroupedSite> site;  // none: this device takes no part
};

// What XLA keeps for each call site of each executable.
struct GroupedCallSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  ~GroupedCallSite() {
    for (const GroupedSlot& slot : slots) {
      if (slot.site) slot.site->Forget(TheExecutor());
    }
  }

  std::vector<GroupedSlot> slots;  // by device id
};
ffi::TypeId GroupedCallSite::id = {};
ffi::TypeInfo GroupedCallSite::info = ffi::MakeTypeInfo<GroupedCallSite>();

// `programs` holds names, after each a comma, for groups of 2, 3, … ranks; `devices` the ids of every rank's device, as
// often as the mesh's other axes ask for.
ffi::ErrorOr<std::unique_ptr<GroupedCallSite>> Instantiate(std::string_view name, std::string_view axes,
                                                           std::string_view programs,
                                                           ffi::Span<const int32_t> devices) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [](const std::string& message) { return ffi::Unexpected(ToError(InvalidArgument(message))); };
  std::vector<std::shared_ptr<const Program>> by_size;
  for (size_t comma; (comma = programs.find(',')) != std::string_view::npos; programs.remove_prefix(comma + 1)) {
    const std::string program_name(programs.substr(0, comma));
    std::shared_ptr<const Program> program = ThePrograms().Find(program_name);
    if (!program) {
      return invalid(who + ": program " + program_name +
                     " is not registered in this process; trace the step again before running it");
    }
    if (program->ranks() != by_size.size() + 2) {
      return invalid(who + ": a program is for " + std::to_string(program->ranks()) + " ranks in place of " +
                     std::to_string(by_size.size() + 2));
    }
    by_size.push_back(std::move(program));
  }
  const size_t ranks = by_size.size() + 1;
  if (devices.size() % ranks != 0) return invalid(who + ": its programs and devices differ in number");
  auto call_site = std::make_unique<GroupedCallSite>();
  std::shared_ptr<GroupedSite> site;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i % ranks == 0) site = std::make_shared<GroupedSite>(std::string(name), std::string(axes), by_size);
    if (devices[i] < 0) return invalid(who + ": device id " + std::to_string(devices[i]) + " is negative");
    const size_t device = static_cast<size_t>(devices[i]);
    if (device >= call_site->slots.size()) call_site->slots.resize(device + 1);
    call_site->slots[device] = {static_cast<uint32_t>(i % ranks), site};
  }
  return call_site;
}

Status Start(GroupedCallSite* call_site, ffi::RunId run, int32_t device, const ffi::RemainingArgs& args,
             const ffi::RemainingRets& rets, const ffi::Promise& promise) {
  if (device < 0 || static_cast<size_t>(device) >= call_site->slots.size() || !call_site->slots[device].site) {
    return Status(Code::kInternal, "grouped: device " + std::to_string(device) + " takes no part");
  }
  const auto& [rank, site] = call_site->slots[device];
  const auto groups = args.get<ffi::BufferR1<ffi::DataType::S32>>(0);
  if (args.size() != rets.size() || !groups.has_value() || groups->element_count() != site->ranks()) {
    return InvalidArgument("grouped: the first operand must be int32[" + std::to_string(site->ranks()) +
                           "], the group of every rank");
  }
  std::vector<Leaf> leaves;
  Buffers buffers;
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(operand.element_type());
    if (!dtype) return Status(Code::kUnimplemented, "grouped: no reduction of this element type");
    if (operand.untyped_data() != result.untyped_data() || operand.size_bytes() != result.size_bytes()) {
      return Status(Code::kInternal, "grouped: operand and result " + std::to_string(i) + " do not fit");
    }
    if (i == 0) continue;
    leaves.push_back({*dtype, static_cast<int64_t>(operand.size_bytes())});
    buffers.operands.push_back(static_cast<const std::byte*>(operand.untyped_data()));
    buffers.results.push_back(static_cast<std::byte*>(result.untyped_data()));
  }
  if (Status status = site->SetLeaves(leaves, TheExecutor().stats()); !status.ok()) return status;
  const int32_t* row = groups->typed_data();
  site->Arrive(TheExecutor(), run.run_id, rank, {row, row + site->ranks()}, std::move(buffers), Keep(promise));
  return Status();
}

ffi::Future Execute(GroupedCallSite* call_site, ffi::RunId run, int32_t device, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  return Begin([&](const ffi::Promise& promise) { return Start(call_site, run, device, args, rets, promise); });
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("name")
                           .Attr<std::string_view>("axes")
                           .Attr<std::string_view>("programs")
                           .Attr<ffi::Span<const int32_t>>("devices"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<GroupedCallSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommGroupedInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<GroupedCallSite>(frame, "jaxcomm.GroupedCallSite");
  return error != nullptr ? error : kInstantiate(frame);
}

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommGroupedExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
