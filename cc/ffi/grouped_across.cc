// The custom call "jaxcomm_grouped_across": as "jaxcomm_grouped", of ranks that live in several processes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/executor/divided_site.h"
#include "cc/ffi/buffers.h"
#include "cc/ffi/call_number.h"
#include "cc/ffi/job.h"
#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

struct DividedSlot {
  uint32_t rank;
  std::shared_ptr<DividedSite> site;
};

// What XLA keeps for each call site of each executable.
struct GroupedAcrossSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  ~GroupedAcrossSite() {
    for (const auto& [device, slot] : slots) slot.site->Forget(TheExecutor());
  }

  uint64_t generation = TheJob().generation();
  std::map<int32_t, DividedSlot> slots;  // by device id
};
ffi::TypeId GroupedAcrossSite::id = {};
ffi::TypeInfo GroupedAcrossSite::info = ffi::MakeTypeInfo<GroupedAcrossSite>();

// `programs` holds names of message lists, after each a comma, for groups of 2, 3, … ranks; `devices` the ids of every
// rank's device, as often as the mesh's other axes ask for, and `processes` where they are.
ffi::ErrorOr<std::unique_ptr<GroupedAcrossSite>> Instantiate(std::string_view name, std::string_view axes,
                                                             std::string_view programs,
                                                             ffi::Span<const int32_t> devices,
                                                             ffi::Span<const int32_t> processes, int64_t module,
                                                             int64_t lowering, int64_t number, std::string_view line) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [&](const std::string& message) {
    return ffi::Unexpected(ToError(InvalidArgument(who + ": " + message)));
  };
  std::vector<std::string> lists;
  for (size_t comma; (comma = programs.find(',')) != std::string_view::npos; programs.remove_prefix(comma + 1)) {
    lists.emplace_back(programs.substr(0, comma));
  }
  const size_t ranks = lists.size() + 1;
  if (devices.size() % ranks != 0 || processes.size() != devices.size()) {
    return invalid("its attributes do not fit together");
  }
  if (!TheJob().started()) {
    return invalid(
        "its ranks live in several processes, which are not connected.\n  Cure: call jaxcomm.init() after "
        "jax.distributed.initialize() in all of them before loading the executable.");
  }
  const uint32_t self = TheJob().process();
  auto made = std::make_unique<GroupedAcrossSite>();
  for (size_t begin = 0; begin < devices.size(); begin += ranks) {
    std::vector<MessageGroup::Rank> members;
    bool is_here = false;
    for (size_t i = begin; i < begin + ranks; ++i) {
      const auto process = static_cast<uint32_t>(processes[i]);
      members.push_back(TheJob().Rank(process, static_cast<uint32_t>(devices[i])));
      is_here = is_here || members.back().process == self;
    }
    if (!is_here) continue;
    const uint64_t communicator = CommunicatorOf({{members, "", {}}});
    const std::optional<CallNumber> numbered = NumberCall(made->generation, communicator, module, lowering, number);
    if (!numbered) return invalid("the step has too many calls");
    Result<std::shared_ptr<DividedSite>> site = DividedSite::Make(
        {std::string(name), std::string(axes), "groups", std::string(line), numbered->step, numbered->number},
        communicator, numbered->site, members, lists, TheMessages(), self);
    if (!site.ok()) return ffi::Unexpected(ToError(site.status()));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (members[rank].process == self) made->slots[devices[begin + rank]] = {rank, site.value()};
    }
  }
  return made;
}

// Reads a call's buffers, which fix the site's leaves; the first is the row of groups.
Status Read(DividedSite& site, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, GroupRow& row,
            Buffers& buffers) {
  const auto groups = args.get<ffi::BufferR1<ffi::DataType::S32>>(0);
  if (!groups.has_value() || groups->element_count() != site.ranks()) {
    return InvalidArgument(site.name() + ": the first operand must be int32[" + std::to_string(site.ranks()) +
                           "], the group of every rank");
  }
  row.assign(groups->typed_data(), groups->typed_data() + site.ranks());
  std::vector<Leaf> leaves;
  Status status = ReadBuffers(site.name(), Kind::kAllReduce, site.ranks(), args, rets, leaves, buffers);
  if (!status.ok()) return status;
  leaves.erase(leaves.begin());
  buffers.operands.erase(buffers.operands.begin());
  buffers.results.erase(buffers.results.begin());
  return site.SetLeaves(leaves, TheExecutor().stats());
}

Status Start(GroupedAcrossSite* call_site, ffi::RunId run, int32_t device, const ffi::RemainingArgs& args,
             const ffi::RemainingRets& rets, const ffi::Promise& promise) {
  const auto at = call_site->slots.find(device);
  if (at == call_site->slots.end()) {
    return Status(Code::kInternal, "grouped: device " + std::to_string(device) + " takes no part");
  }
  const auto& [rank, site] = at->second;
  if (Status status = TheJob().CheckGeneration(call_site->generation, site->name()); !status.ok()) return status;
  GroupRow row;
  Buffers buffers;
  const auto read = [&divided = *site, &args, &rets, &row, &buffers] {
    return Read(divided, args, rets, row, buffers);
  };
  if (Status status = ReadOrRefuse(site->whole(), run.run_id, rank, read); !status.ok()) return status;
  site->Arrive(TheExecutor(), run.run_id, rank, row, std::move(buffers), Keep(promise));
  return Status();
}

ffi::Future Execute(GroupedAcrossSite* call_site, ffi::RunId run, int32_t device, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  return Begin([&](const ffi::Promise& promise) { return Start(call_site, run, device, args, rets, promise); });
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("name")
                           .Attr<std::string_view>("axes")
                           .Attr<std::string_view>("programs")
                           .Attr<ffi::Span<const int32_t>>("devices")
                           .Attr<ffi::Span<const int32_t>>("processes")
                           .Attr<int64_t>("module")
                           .Attr<int64_t>("lowering")
                           .Attr<int64_t>("number")
                           .Attr<std::string_view>("line"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<GroupedAcrossSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommGroupedAcrossInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<GroupedAcrossSite>(frame, "jaxcomm.GroupedAcrossSite");
  return error != nullptr ? error : kInstantiate(frame);
}

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommGroupedAcrossExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
