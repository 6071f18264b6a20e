#include "cc/ffi/sites/call_sites.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "cc/executor/local/local_group_site.h"
#include "cc/executor/local/local_site.h"
#include "cc/executor/sites/message_group_site.h"
#include "cc/executor/sites/message_site.h"
#include "cc/ffi/job.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

// Returns the error for a schedule that this process has not loaded. `schedule` is "program belongs" or "messages
// belong", which becomes a part of the error text.
Status NotLoaded(const SiteRecord& record, const std::string& schedule) {
  return InvalidArgument(record.who() + ": its " + schedule + " to plan " + record.plan +
                         ", which this process has not loaded.\n  Cure: call jaxcomm.use_plan with the file of plan " +
                         record.plan + " before loading the executable.");
}

Result<std::shared_ptr<const Program>> FindProgram(const SiteRecord& record, const std::string& name, size_t ranks) {
  std::shared_ptr<const Program> program = ThePrograms().Find(name);
  if (!program) return NotLoaded(record, "program belongs");
  if (program->ranks() != ranks) {
    return InvalidArgument(record.who() + ": the program is for " + std::to_string(program->ranks()) +
                           " ranks, the group has " + std::to_string(ranks));
  }
  if (const Status fits = CheckChunks(record.kind, *program); !fits.ok()) {
    return InvalidArgument(record.who() + ": " + fits.message() + "\n  Cure: use the program that " +
                           "jaxcomm.psum_scatter and jaxcomm.all_gather use.");
  }
  return program;
}

Result<std::shared_ptr<CallSite>> MakeLocalSite(const SiteRecord& record, const SiteRecord::Group& group) {
  std::shared_ptr<CallSite> made;
  if (group.ranks.size() == 1) return made;
  std::vector<std::shared_ptr<const Program>> programs;
  for (const std::string& name : group.schedules) {
    const size_t ranks = record.groups_by_operand ? programs.size() + 2 : group.ranks.size();
    Result<std::shared_ptr<const Program>> program = FindProgram(record, name, ranks);
    if (!program.ok()) return program.status();
    programs.push_back(std::move(program.value()));
  }
  if (record.groups_by_operand) {
    made = std::make_shared<LocalGroupSite>(record.name, record.axes, programs);
    return made;
  }
  auto site =
      std::make_shared<LocalSite>(record.name, record.axes, record.plan, record.kind, record.reduction, programs[0]);
  if (programs.size() > 1) site->SelectFrom({programs.begin() + 1, programs.end()}, *record.rule);
  made = std::move(site);
  return made;
}

Result<CallSites::Ranks> MakeLocal(const SiteRecord& record) {
  CallSites::Ranks made;
  for (const SiteRecord::Group& group : record.groups) {
    const Result<std::shared_ptr<CallSite>> site = MakeLocalSite(record, group);
    if (!site.ok()) return site.status();
    for (uint32_t rank = 0; rank < group.ranks.size(); ++rank) {
      made[group.ranks[rank].number] = {site.value(), rank, group.ranks.size()};
    }
  }
  return made;
}

std::vector<MessageRank> RanksOf(const SiteRecord::Group& group) {
  std::vector<MessageRank> ranks;
  for (const auto [process, device] : group.ranks) {
    ranks.push_back(TheJob().Rank(process, static_cast<uint32_t>(device)));
  }
  return ranks;
}

Result<MessageGroup> MakeGroup(const SiteRecord& record, const SiteRecord::Group& group, const std::string& list) {
  MessageGroup made{RanksOf(group), list, {}};
  for (uint32_t rank = 0; rank < made.ranks.size(); ++rank) {
    const bool is_here = made.ranks[rank].process == TheJob().process();
    made.lists.push_back(is_here ? TheMessages().Find(list, rank) : nullptr);
    if (is_here && !made.lists.back()) return NotLoaded(record, "messages belong");
  }
  return made;
}

// The identifiers of a call site, equal in all processes.
struct Named {
  uint64_t communicator;
  uint32_t site;
  MessageSite::Label label;
};

// Returns the identifiers of a call site. `numbers` already has the call's number if the call was numbered in an
// earlier generation. A process that joined the job later gives the call the same number.
Result<Named> NameSite(const SiteRecord& record, uint64_t generation, const std::vector<MessageGroup>& groups,
                       CallSites::Numbers& numbers) {
  const SiteRecord::Between& between = *record.between;
  const uint64_t communicator = CommunicatorOf(groups);
  auto at = numbers.find(communicator);
  if (at == numbers.end()) {
    const std::optional<CallNumber> call =
        NumberCall(generation, communicator, between.module, between.lowering, between.number);
    if (!call) return InvalidArgument(record.who() + ": the step has too many calls");
    at = numbers.emplace(communicator, *call).first;
  }
  const CallNumber& call = at->second;
  return Named{communicator, call.site, {record.name, record.axes, record.plan, between.line, call.step, call.number}};
}

// Returns the schedules for lost rails. Omits rails that the job does not have. Returns no schedule if the job has only
// one rail.
std::vector<ScheduleSelector::LostRail> LostRailsOf(const SiteRecord& record) {
  std::vector<ScheduleSelector::LostRail> lost_rails;
  uint32_t schedule = ScheduleSelector::Count(*record.rule, record.groups[0].ranks.size());
  for (const SiteRecord::LostRail& lost : record.lost_rails) {
    const std::optional<uint32_t> rail = TheJob().FindRail(lost.rail);
    if (rail) lost_rails.push_back({lost.rank, *rail, schedule});
    ++schedule;
  }
  return lost_rails;
}

Result<std::shared_ptr<CallSite>> MakeMessageSite(const SiteRecord& record, Named named,
                                                  std::vector<MessageGroup> groups) {
  std::shared_ptr<CallSite> made;
  const uint32_t process = TheJob().process();
  const auto make = [&](const std::vector<MessageGroup>& of) {
    Collective collective{record.kind, record.reduction, record.loss, record.is_in_place};
    return MessageSite::Make(named.label, std::move(collective), named.communicator, named.site, of, process);
  };
  Result<std::shared_ptr<MessageSite>> found = make(groups);
  if (!found.ok()) return found.status();
  // The site has a selector and several schedules only if a rank may be late or a rail may be lost. This condition has
  // the same value in all processes.
  std::vector<ScheduleSelector::LostRail> lost_rails;
  if (record.rule) lost_rails = LostRailsOf(record);
  if (record.rule && (record.rule->rank != ScheduleSelector::kNoRank || !lost_rails.empty())) {
    const std::vector<std::string>& lists = record.groups[0].schedules;
    std::vector<std::shared_ptr<MessageSite>> others;
    for (size_t i = 1; i < lists.size(); ++i) {
      Result<MessageGroup> group = MakeGroup(record, record.groups[0], lists[i]);
      if (!group.ok()) return group.status();
      Result<std::shared_ptr<MessageSite>> other = make({std::move(group.value())});
      if (!other.ok()) return other.status();
      others.push_back(std::move(other.value()));
    }
    std::shared_ptr<ScheduleSelector> selector = TheExecutor().messages().SelectorOf(
        *found.value(), others, *record.rule, found.value()->step(), std::move(lost_rails));
    found.value()->SelectFrom(std::move(others), std::move(selector));
  }
  made = std::move(found.value());
  return made;
}

// Makes one site for all groups. Ranks are numbered group by group. Groups of one rank are left out.
Result<CallSites::Ranks> MakeBetweenProcesses(const SiteRecord& record, uint64_t generation,
                                              CallSites::Numbers& numbers) {
  CallSites::Ranks made;
  std::vector<MessageGroup> groups;
  std::vector<int32_t> here;  // this process's devices in groups of several ranks
  uint32_t number = 0;
  for (const SiteRecord::Group& group : record.groups) {
    const size_t ranks = group.ranks.size();
    for (const auto [process, device] : group.ranks) {
      if (process == TheJob().process()) made[device] = {nullptr, number, ranks};
      if (process == TheJob().process() && ranks > 1) here.push_back(device);
      number += ranks > 1 ? 1 : 0;
    }
    if (ranks == 1) continue;
    Result<MessageGroup> with_lists = MakeGroup(record, group, group.schedules[0]);
    if (!with_lists.ok()) return with_lists.status();
    groups.push_back(std::move(with_lists.value()));
  }
  if (here.empty()) return made;
  Result<Named> named = NameSite(record, generation, groups, numbers);
  if (!named.ok()) return named.status();
  const Result<std::shared_ptr<CallSite>> site = MakeMessageSite(record, std::move(named.value()), std::move(groups));
  if (!site.ok()) return site.status();
  for (const int32_t device : here) made[device].site = site.value();
  return made;
}

// Makes a site for each group. Each call's first operand divides the group further.
Result<CallSites::Ranks> MakeGroupsByOperand(const SiteRecord& record, uint64_t generation,
                                             CallSites::Numbers& numbers) {
  CallSites::Ranks made;
  const uint32_t process = TheJob().process();
  for (const SiteRecord::Group& group : record.groups) {
    const std::vector<MessageRank> ranks = RanksOf(group);
    const auto is_here = [process](const auto& rank) { return rank.process == process; };
    if (std::none_of(ranks.begin(), ranks.end(), is_here)) continue;
    Result<Named> named = NameSite(record, generation, {{ranks, "", {}}}, numbers);
    if (!named.ok()) return named.status();
    auto& [communicator, site, label] = named.value();
    Result<std::shared_ptr<MessageGroupSite>> found =
        MessageGroupSite::Make(std::move(label), communicator, site, ranks, group.schedules, TheMessages(), process);
    if (!found.ok()) return found.status();
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      if (is_here(ranks[rank])) made[group.ranks[rank].number] = {found.value(), rank, ranks.size()};
    }
  }
  return made;
}

}  // namespace

CallSites::CallSites(SiteRecord record)
    : record_(std::move(record)), who_(record_.who()), process_(getpid()), job_(TheJob().number()) {}

Result<std::unique_ptr<CallSites>> CallSites::Make(SiteRecord record) {
  std::unique_ptr<CallSites> made(new CallSites(std::move(record)));
  if (Status status = made->Renew(); !status.ok()) return status;
  return made;
}

// Makes the call sites of the current generation.
Status CallSites::Renew() {
  const uint64_t generation = record_.between ? TheJob().generation() : 0;
  if (record_.between && !TheJob().started()) {
    return InvalidArgument(who_ + ": its ranks live in several processes, which are not connected.\n  Cure: call " +
                           "jaxcomm.init() after jax.distributed.initialize() in all of them before loading the " +
                           "executable.");
  }
  Result<Ranks> ranks = !record_.between            ? MakeLocal(record_)
                        : record_.groups_by_operand ? MakeGroupsByOperand(record_, generation, numbers_)
                                                    : MakeBetweenProcesses(record_, generation, numbers_);
  if (!ranks.ok()) return ranks.status();
  Forget();
  ranks_ = std::move(ranks.value());
  generation_ = generation;
  return Status();
}

Result<CallSites::Rank> CallSites::Find(int32_t device) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (record_.between) lock.lock();  // the ranks of calls within one process never change
  auto at = ranks_.find(device);
  if (at == ranks_.end()) {
    return Status(Code::kInternal, who_ + ": device " + std::to_string(device) + " is in no group");
  }
  if (!record_.between || !at->second.site) return at->second;
  if (Status status = TheJob().CheckNumber(job_, record_.name); !status.ok()) return status;
  if (generation_ != TheJob().generation()) {
    if (Status status = Renew(); !status.ok()) return status;
    at = ranks_.find(device);
  }
  return at->second;
}

void CallSites::Forget() const {
  std::set<const CallSite*> forgotten;
  for (const auto& [device, rank] : ranks_) {
    if (rank.site && forgotten.insert(rank.site.get()).second) rank.site->Forget(TheExecutor());
  }
}

CallSites::~CallSites() {
  if (getpid() == process_) Forget();
}

}  // namespace jaxcomm
