// The custom call "jaxcomm_across": a collective whose ranks live in several processes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/executor/message_site.h"
#include "cc/executor/planned_site.h"
#include "cc/ffi/buffers.h"
#include "cc/ffi/call_number.h"
#include "cc/ffi/groups.h"
#include "cc/ffi/job.h"
#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

// What XLA keeps for each call site of each executable.
struct AcrossSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  ~AcrossSite() {
    if (site) TheExecutor().Forget(site.get());
    if (site && site->other()) TheExecutor().Forget(site->other().get());
    if (planned) planned->Forget(TheExecutor());
  }
  const MessageSite& own() const { return planned ? planned->own() : *site; }

  uint64_t generation = TheJob().generation();
  std::shared_ptr<MessageSite> site;
  std::shared_ptr<PlannedSite> planned;  // in its place, where its plan is kAuto
  std::map<int32_t, uint32_t> ranks;     // by device id, those of groups of one rank left out
};
ffi::TypeId AcrossSite::id = {};
ffi::TypeInfo AcrossSite::info = ffi::MakeTypeInfo<AcrossSite>();

// A group with the lists of its ranks in this process; `processes`: by rank.
Result<MessageGroup> MakeGroup(const std::string& who, std::string_view plan, const Group& group,
                               const int32_t* processes) {
  MessageGroup made;
  made.list = group.program;
  for (uint32_t rank = 0; rank < group.devices.size(); ++rank) {
    const uint32_t process = static_cast<uint32_t>(processes[rank]);
    made.ranks.push_back(TheJob().Rank(process, static_cast<uint32_t>(group.devices[rank])));
    made.lists.push_back(process == TheJob().process() ? TheMessages().Find(group.program, rank) : nullptr);
    if (process == TheJob().process() && !made.lists.back()) {
      return InvalidArgument(who + ": its messages are those of plan " + std::string(plan) +
                             ", which this process has not loaded.\n  Cure: call jaxcomm.use_plan with the file of "
                             "plan " +
                             std::string(plan) + " before loading the executable.");
    }
  }
  return made;
}

ffi::ErrorOr<std::unique_ptr<AcrossSite>> Instantiate(
    std::string_view name, std::string_view axes, std::string_view plan, std::string_view programs,
    std::string_view kind_name, std::string_view reduction_name, ffi::Span<const int32_t> devices,
    ffi::Span<const int32_t> sizes, ffi::Span<const int32_t> processes, int64_t module, int64_t lowering,
    int64_t number, std::string_view line, ffi::Span<const double> shares, int64_t segment_bytes,
    std::string_view others, int64_t late, double below, int64_t tries) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [&](const std::string& message) {
    return ffi::Unexpected(ToError(InvalidArgument(who + ": " + message)));
  };
  const std::optional<Kind> kind = ParseKind(kind_name);
  const std::optional<Reduction> reduction = ParseReduction(reduction_name);
  if (!kind || !reduction || processes.size() != devices.size()) return invalid("its attributes do not fit together");
  Result<std::vector<Group>> parsed = ParseGroups(who, programs, devices, sizes);
  if (!parsed.ok()) return ffi::Unexpected(ToError(parsed.status()));
  if (!TheJob().started()) {
    return invalid(
        "its ranks live in several processes, which are not connected.\n  Cure: call jaxcomm.init() after "
        "jax.distributed.initialize() in all of them before loading the executable.");
  }
  auto across = std::make_unique<AcrossSite>();
  std::vector<MessageGroup> groups;
  uint32_t rank = 0;
  size_t next = 0;
  for (const Group& group : parsed.value()) {
    if (group.devices.size() == 1) {
      if (*kind != Kind::kAllReduce) return invalid("a group has one rank");
      ++next;
      continue;
    }
    Result<MessageGroup> made = MakeGroup(who, plan, group, processes.begin() + next);
    if (!made.ok()) return ffi::Unexpected(ToError(made.status()));
    for (const int32_t device : group.devices) {
      if (static_cast<uint32_t>(processes[next++]) == TheJob().process()) across->ranks[device] = rank;
      ++rank;
    }
    groups.push_back(std::move(made.value()));
  }
  if (across->ranks.empty()) return across;
  const uint64_t communicator = CommunicatorOf(groups);
  const std::optional<CallNumber> numbered = NumberCall(across->generation, communicator, module, lowering, number);
  if (!numbered) return invalid("the step has too many calls");
  MessageSite::Label label{std::string(name), std::string(axes), std::string(plan),
                           std::string(line), numbered->step,    numbered->number};
  if (plan == kAuto && *kind == Kind::kAllReduce) {
    Result<std::shared_ptr<PlannedSite>> planned =
        PlannedSite::Make(std::move(label), *reduction, communicator, numbered->site, std::move(groups), TheMessages(),
                          TheJob().process());
    if (!planned.ok()) return ffi::Unexpected(ToError(planned.status()));
    across->planned = std::move(planned.value());
    return across;
  }
  std::optional<AllowedLoss> loss;
  if (shares.size() > 0) loss = AllowedLoss{{shares.begin(), shares.end()}, segment_bytes};
  Result<std::shared_ptr<MessageSite>> site = MessageSite::Make(
      std::move(label), *kind, *reduction, communicator, numbered->site, groups, TheJob().process(), std::move(loss));
  if (!site.ok()) return ffi::Unexpected(ToError(site.status()));
  across->site = std::move(site.value());
  if (others == programs) return across;
  Result<std::vector<Group>> other = ParseGroups(who, others, devices, sizes);
  if (!other.ok()) return ffi::Unexpected(ToError(other.status()));
  if (other.value().size() != 1 || late < 0 || late >= static_cast<int64_t>(devices.size())) {
    return invalid("only one group, with the late rank in it, may choose between two schedules");
  }
  Result<MessageGroup> group = MakeGroup(who, plan, other.value()[0], processes.begin());
  if (!group.ok()) return ffi::Unexpected(ToError(group.status()));
  Result<std::shared_ptr<MessageSite>> second = MessageSite::Make(
      across->site->label(), *kind, *reduction, communicator, numbered->site, {group.value()}, TheJob().process());
  if (!second.ok()) return ffi::Unexpected(ToError(second.status()));
  std::shared_ptr<StepChoice> choice =
      TheExecutor().ChoiceOf(*across->site, *second.value(), {static_cast<uint32_t>(late), below, tries != 0});
  across->site->SetOther(std::move(second.value()), std::move(choice));
  return across;
}

// Of a call that may lose some, the first operand says what is important.
Status TakeImportant(const MessageSite& site, std::vector<Leaf>& leaves, Buffers& buffers) {
  const int64_t segment_bytes = site.loss()->segment_bytes;
  int64_t segments = 0;
  for (size_t i = 1; i < leaves.size(); ++i) segments += (leaves[i].bytes + segment_bytes - 1) / segment_bytes;
  if (leaves.empty() || leaves[0].dtype != DType::kU8 || leaves[0].bytes != segments) {
    return Status(Code::kInternal, site.label().name + ": what is important of its operands is not said");
  }
  buffers.important = buffers.operands[0];
  leaves.erase(leaves.begin());
  buffers.operands.erase(buffers.operands.begin());
  buffers.results.erase(buffers.results.begin());
  return Status();
}

// Reads a call's buffers, which fix the site's leaves.
Status Read(AcrossSite* across, uint32_t rank, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
            Buffers& buffers) {
  std::vector<Leaf> leaves;
  const MessageSite& own = across->own();
  Status status = ReadBuffers(own.label().name, own.kind(), own.GroupOf(rank).size(), args, rets, leaves, buffers);
  if (!status.ok()) return status;
  if (own.loss()) status = TakeImportant(own, leaves, buffers);
  if (!status.ok()) return status;
  return across->planned ? across->planned->SetLeaves(leaves, TheExecutor().stats())
                         : across->site->SetLeaves(leaves, TheExecutor().stats());
}

Status Start(AcrossSite* across, ffi::RunId run, int32_t device, const ffi::RemainingArgs& args,
             const ffi::RemainingRets& rets, const ffi::Promise& promise) {
  const auto at = across->ranks.find(device);
  if (at == across->ranks.end()) {
    HandOn(args, rets);
    ffi::Promise alone = promise;
    alone.SetAvailable();
    return Status();
  }
  Buffers buffers;
  const MessageSite& own = across->own();
  if (Status status = TheJob().CheckGeneration(across->generation, own.label().name); !status.ok()) return status;
  const auto read = [&] { return Read(across, at->second, args, rets, buffers); };
  if (Status status = ReadOrRefuse(own, run.run_id, at->second, read); !status.ok()) return status;
  if (across->planned) {
    across->planned->Arrive(TheExecutor(), ThePlanSwitches(), run.run_id, at->second, std::move(buffers),
                            Keep(promise));
  } else {
    TheExecutor().ArriveAcross(across->site, run.run_id, at->second, std::move(buffers), Keep(promise));
  }
  return Status();
}

ffi::Future Execute(AcrossSite* across, ffi::RunId run, int32_t device, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  return Begin([&](const ffi::Promise& promise) { return Start(across, run, device, args, rets, promise); });
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
                           .Attr<ffi::Span<const int32_t>>("sizes")
                           .Attr<ffi::Span<const int32_t>>("processes")
                           .Attr<int64_t>("module")
                           .Attr<int64_t>("lowering")
                           .Attr<int64_t>("number")
                           .Attr<std::string_view>("line")
                           .Attr<ffi::Span<const double>>("shares")
                           .Attr<int64_t>("segment_bytes")
                           .Attr<std::string_view>("others")
                           .Attr<int64_t>("late")
                           .Attr<double>("below")
                           .Attr<int64_t>("tries"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<AcrossSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommAcrossInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<AcrossSite>(frame, "jaxcomm.AcrossSite");
  return error != nullptr ? error : kInstantiate(frame);
}

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommAcrossExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
