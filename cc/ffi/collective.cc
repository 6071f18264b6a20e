// The custom call "jaxcomm_collective": decode, look up, hand over, return the future.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/ffi/buffers.h"
#include "cc/ffi/groups.h"
#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

struct DeviceSlot {
  int64_t group = -1;
  uint32_t rank = 0;
  std::shared_ptr<Site> site;  // none in a group of one rank, which has nothing to do
};

// What XLA keeps for each call site of each executable.
struct CallSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  ~CallSite() {
    for (const auto& [name, site] : sites) TheExecutor().Forget(site.get());
  }

  // By program: groups of one size share theirs, but not where each chooses between two programs.
  std::map<std::pair<std::string, size_t>, std::shared_ptr<Site>> sites;
  std::vector<DeviceSlot> slots;  // by device id
};
ffi::TypeId CallSite::id = {};
ffi::TypeInfo CallSite::info = ffi::MakeTypeInfo<CallSite>();

Result<std::shared_ptr<const Program>> FindProgram(const std::string& who, std::string_view plan, Kind kind,
                                                   const std::string& name, size_t ranks) {
  std::shared_ptr<const Program> program = ThePrograms().Find(name);
  if (!program) {
    return InvalidArgument(
        who + ": its program is one of plan " + std::string(plan) +
        ", which this process has not loaded.\n  Cure: call jaxcomm.use_plan with the file of plan " +
        std::string(plan) + " before loading the executable.");
  }
  if (program->ranks() != ranks) {
    return InvalidArgument(who + ": the program is for " + std::to_string(program->ranks()) + " ranks, the group has " +
                           std::to_string(ranks));
  }
  if (const Status fits = CheckChunks(kind, *program); !fits.ok()) {
    return InvalidArgument(who + ": " + fits.message() + "\n  Cure: take the program that jaxcomm.psum_scatter and " +
                           "jaxcomm.all_gather take.");
  }
  return program;
}

ffi::ErrorOr<std::unique_ptr<CallSite>> Instantiate(std::string_view name, std::string_view axes, std::string_view plan,
                                                    std::string_view programs, std::string_view kind_name,
                                                    std::string_view reduction_name, ffi::Span<const int32_t> devices,
                                                    ffi::Span<const int32_t> sizes, std::string_view others,
                                                    int64_t late, double below, int64_t tries) {
  const std::string who = std::string(name) + " over '" + std::string(axes) + "'";
  const auto invalid = [](const std::string& message) { return ffi::Unexpected(ToError(InvalidArgument(message))); };
  const std::optional<Kind> kind = ParseKind(kind_name);
  const std::optional<Reduction> reduction = ParseReduction(reduction_name);
  if (!kind || !reduction) {
    return invalid(who + ": unknown kind '" + std::string(kind_name) + "' or reduction '" +
                   std::string(reduction_name) + "'");
  }
  auto call_site = std::make_unique<CallSite>();
  Result<std::vector<Group>> parsed = ParseGroups(who, programs, devices, sizes);
  if (!parsed.ok()) return ffi::Unexpected(ToError(parsed.status()));
  Result<std::vector<Group>> other = ParseGroups(who, others, devices, sizes);
  if (!other.ok()) return ffi::Unexpected(ToError(other.status()));
  for (size_t group = 0; group < parsed.value().size(); ++group) {
    const auto& [program_name, members] = parsed.value()[group];
    std::shared_ptr<Site> site;
    if (members.size() == 1 && *kind != Kind::kAllReduce) {
      return invalid(who + ": group " + std::to_string(group) + " has one rank");
    }
    if (members.size() > 1) {
      const std::string& other_name = other.value()[group].program;
      const bool chooses = other_name != program_name;
      Result<std::shared_ptr<const Program>> program = FindProgram(who, plan, *kind, program_name, members.size());
      if (!program.ok()) return ffi::Unexpected(ToError(program.status()));
      std::shared_ptr<Site>& shared = call_site->sites[{program_name, chooses ? group : 0}];
      if (!shared) {
        shared = std::make_shared<Site>(std::string(name), std::string(axes), std::string(plan), *kind, *reduction,
                                        program.value());
        if (chooses) {
          if (late < 0 || late >= static_cast<int64_t>(members.size())) return invalid(who + ": no such late rank");
          Result<std::shared_ptr<const Program>> found = FindProgram(who, plan, *kind, other_name, members.size());
          if (!found.ok()) return ffi::Unexpected(ToError(found.status()));
          shared->SetOther(found.value(), {static_cast<uint32_t>(late), below, tries != 0});
        }
      }
      site = shared;
    }
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      const size_t device = static_cast<size_t>(members[rank]);
      if (device >= call_site->slots.size()) call_site->slots.resize(device + 1);
      call_site->slots[device] = {static_cast<int64_t>(group), rank, site};
    }
  }
  return call_site;
}

Status Start(CallSite* call_site, ffi::RunId run, int32_t device, const ffi::RemainingArgs& args,
             const ffi::RemainingRets& rets, const ffi::Promise& promise) {
  if (device < 0 || static_cast<size_t>(device) >= call_site->slots.size() || call_site->slots[device].group < 0) {
    return Status(Code::kInternal, "collective: device " + std::to_string(device) + " is in no group");
  }
  const auto& [group, rank, site] = call_site->slots[device];
  if (!site) {
    HandOn(args, rets);
    ffi::Promise alone = promise;
    alone.SetAvailable();
    return Status();
  }
  std::vector<Leaf> leaves;
  Buffers buffers;
  Status status = ReadBuffers(site->name(), site->kind(), site->program().ranks(), args, rets, leaves, buffers);
  if (status.ok()) status = site->SetLeaves(leaves, TheExecutor().stats());
  if (!status.ok()) return status;
  TheExecutor().Arrive({run.run_id, group}, site, rank, std::move(buffers), Keep(promise));
  return status;
}

ffi::Future Execute(CallSite* call_site, ffi::RunId run, int32_t device, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  return Begin([&](const ffi::Promise& promise) { return Start(call_site, run, device, args, rets, promise); });
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
                           .Attr<std::string_view>("others")
                           .Attr<int64_t>("late")
                           .Attr<double>("below")
                           .Attr<int64_t>("tries"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CallSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommCollectiveInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<CallSite>(frame, "jaxcomm.CallSite");
  return error != nullptr ? error : kInstantiate(frame);
}

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommCollectiveExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm
