#include "cc/executor/device_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "cc/base/hash.h"
#include "cc/base/text.h"

namespace jaxcomm {
namespace {

uint64_t IdOf(const std::vector<MessageRank>& devices, uint32_t instance) {
  std::string text = "communicator|" + std::to_string(instance);
  for (const MessageRank& device : devices) text += "|" + std::to_string(device.device);
  return Hash(text);
}

// In reductions up to this size, the calling thread itself receives the messages and reduces them.
constexpr int64_t kHelpedBytes = 1 << 20;

// A waiting thread calls Help at most this number of times, for up to a millisecond each time. The thread then sleeps
// until the call has ended.
constexpr int kHelpTimes = 20;

// Names the reduction, so that errors distinguish calls that differ only in their reduction.
std::string WhereOf(const DeviceGroup::Signature& call) {
  static constexpr const char* kReductions[] = {"sum", "maximum", "minimum", "product"};  // in the order of Reduction
  const bool reduces = !call.is_transfer() && (call.kind == Kind::kAllReduce || call.kind == Kind::kReduceScatter);
  const std::string what = reduces ? kReductions[static_cast<int>(call.reduction)] : "collective";
  return "a " + what + " of the program's own";
}

// Returns the hash of the step to which a call belongs. XLA does not report which program makes a call, so all equal
// calls count as calls of one step. Most programs make each call once per step, so the time between two equal calls is
// the time of a step (PlanSelector::Periods).
uint64_t StepOf(uint64_t group, const DeviceGroup::Signature& call) {
  return Hash(std::to_string(group) + "|" + std::string(call.name) + "|" +
              std::to_string(static_cast<int>(call.reduction)) + "|" + std::to_string(static_cast<int>(call.dtype)) +
              "|" + std::to_string(call.bytes));
}

}  // namespace

DeviceGroup::DeviceGroup(std::string name, std::vector<MessageRank> devices, uint32_t instance)
    : name_(std::move(name)), devices_(std::move(devices)), id_(IdOf(devices_, instance)) {}

std::string DeviceGroup::NameOf(const std::vector<MessageRank>& devices) {
  constexpr size_t kMost = 64;
  std::vector<uint32_t> processes;
  for (const MessageRank& device : devices) processes.push_back(device.process);
  const std::string all = "processes " + JoinRanks(processes);
  if (all.size() <= kMost) return all;
  const std::string first = JoinRanks(std::vector<uint32_t>(processes.begin(), processes.begin() + 3));
  return std::to_string(devices.size()) + " ranks, processes " + first + ",...," + std::to_string(processes.back());
}

uint64_t DeviceGroup::PairId(uint32_t from, uint32_t to) const {
  return Hash("transfer|" + std::to_string(id_) + "|" + std::to_string(from) + "|" + std::to_string(to));
}

Result<DeviceGroup::Site> DeviceGroup::Find(const Signature& call, const ChosenList& chosen, Executor& executor,
                                            MessageRegistry& lists, uint32_t process) {
  const SiteKey key(call, chosen);
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto at = sites_.find(key); at != sites_.end()) return at->second;
  MessageGroup group{{}, chosen.list, {}};
  if (call.pair) {
    group.ranks = {devices_[call.pair->first], devices_[call.pair->second]};
  } else {
    group.ranks = devices_;
  }
  for (uint32_t rank = 0; call.kind != Kind::kAllToAll && rank < group.ranks.size(); ++rank) {
    group.lists.push_back(group.ranks[rank].process == process ? lists.Find(chosen.list, rank) : nullptr);
  }
  Result<Site> made = Make(call, chosen, std::move(group), executor, lists, process);
  if (!made.ok()) return made;
  if (sites_.size() >= kMostSites) {
    for (const auto& [oldest, forgotten] : sites_) forgotten->Forget(executor);
    sites_.clear();
  }
  sites_.emplace(key, made.value());
  return made;
}

Result<DeviceGroup::Site> DeviceGroup::Make(const Signature& call, const ChosenList& chosen, MessageGroup group,
                                            Executor& executor, MessageRegistry& lists, uint32_t process) const {
  MessageSite::Label label{std::string(call.name), name_, chosen.plan, WhereOf(call)};
  const std::vector<Leaf> leaves(call.kind == Kind::kAllToAll ? group.ranks.size() - 1 : 1, {call.dtype, call.bytes});
  if (chosen.plan == kAuto) {
    const auto step = std::make_shared<Step>();
    step->hash = StepOf(id_, call);
    label.step = step;
  }
  const Collective collective{call.kind, call.reduction, std::nullopt, call.is_in_place};
  if (call.pair) group.names = {call.pair->first, call.pair->second};
  Result<std::shared_ptr<MessageSite>> made =
      MessageSite::Make(std::move(label), collective, call.pair ? PairId(call.pair->first, call.pair->second) : id_,
                        /*site=*/0, {group}, process);
  if (!made.ok()) return made.status();
  std::shared_ptr<MessageSite> site = std::move(made.value());
  if (!chosen.default_list.empty()) {
    for (uint32_t rank = 0; rank < group.ranks.size(); ++rank) {
      if (group.ranks[rank].process == process) group.lists[rank] = lists.Find(chosen.default_list, rank);
    }
    group.list = chosen.default_list;
    Result<std::shared_ptr<MessageSite>> other =
        MessageSite::Make(site->label(), collective, id_, /*site=*/0, {std::move(group)}, process);
    if (!other.ok()) return other.status();
    const std::vector<std::shared_ptr<MessageSite>> planned{std::exchange(site, std::move(other.value()))};
    site->SelectFrom(planned,
                     executor.messages().SelectorOf(*site, planned, ScheduleSelector::kTrial, StepOf(id_, call)));
  }
  if (Status status = site->SetLeaves(leaves, executor.stats()); !status.ok()) return status;
  return site;
}

Status PendingCall::Wait(Executor& executor) {
  const auto over = [this] { return is_over(); };
  for (int times = 0; helps_ && times < kHelpTimes && executor.messages().Help(over) && !is_over();) ++times;
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return status_.has_value(); });
  return *status_;
}

bool PendingCall::is_over() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_.has_value();
}

void PendingCall::End(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  ended_.notify_all();
}

Status DeviceCommunicator::AllReduce(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype,
                                     Reduction reduction) {
  return Run({"all-reduce", Kind::kAllReduce, reduction, dtype, bytes, operand == result}, operand, result);
}

Status DeviceCommunicator::ReduceScatter(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype,
                                         Reduction reduction) {
  return Run({"reduce-scatter", Kind::kReduceScatter, reduction, dtype, bytes, false}, operand, result);
}

Status DeviceCommunicator::AllGather(const std::byte* operand, std::byte* result, int64_t bytes) {
  return Run({"all-gather", Kind::kAllGather, Reduction::kSum, DType::kU8, bytes, false}, operand, result);
}

Result<DeviceGroup::Site> DeviceCommunicator::Find(const Signature& call) {
  const uint64_t changes = changes_ == nullptr ? 0 : changes_->load();
  if (std::exchange(known_at_, changes) != changes) known_.clear();
  for (const auto& [known, site] : known_) {
    if (known == call) return site;
  }
  ChosenList chosen{"", "none"};
  if (call.is_transfer()) {
    chosen.list = "broadcast/flat/2";
  } else if (call.kind != Kind::kAllToAll) {
    chosen = choose_(call.kind, *group_, call.kind == Kind::kAllReduce ? call.bytes : call.bytes * size());
  }
  const Result<DeviceGroup::Site> site =
      group_->Find(call, chosen, executor_, lists_, group_->devices()[rank_].process);
  if (site.ok() && known_.size() == kMostKnown) known_.clear();
  if (site.ok()) known_.emplace_back(call, site.value());
  return site;
}

Status DeviceCommunicator::Run(const Signature& call, const std::byte* operand, std::byte* result) {
  if (size() == 1 || call.bytes == 0) {
    std::memmove(result, operand, static_cast<size_t>(call.bytes));
    return Status();
  }
  const CallId id{group_->id(), calls_++, /*site=*/failures_, /*iteration=*/0};
  Buffers buffers{{operand}, {result}, nullptr, nullptr, true};
  const Clock::time_point at = Clock::now();
  const Result<DeviceGroup::Site> site = Find(call);
  if (site.ok() && executor_.messages().ExchangeOperands(site.value(), id, rank_, buffers, at)) return Status();
  const auto pending = std::make_shared<PendingCall>();
  Begin(pending, call, site, id, rank_, std::move(buffers), at);
  Status status = pending->Wait(executor_);
  Count(status);
  return status;
}

void DeviceCommunicator::Begin(const std::shared_ptr<PendingCall>& pending, const Signature& call,
                               const Result<DeviceGroup::Site>& site, const CallId& id, uint32_t rank, Buffers buffers,
                               Clock::time_point at) {
  // A thread in Help sleeps until a message from another process arrives. A thread that waits for a transfer within its
  // process must therefore not call Help. For a reduction above kHelpedBytes, the thread does not call Help either,
  // because several workers reduce the received messages in parallel.
  const std::vector<MessageRank>& devices = group_->devices();
  const bool is_local = call.pair && devices[call.pair->first].process == devices[call.pair->second].process;
  const bool helps = !is_local && (call.pair || call.kind == Kind::kAllGather || call.bytes <= kHelpedBytes);
  pending->set_helps(helps);
  Done done = [pending](const Status& status) { pending->End(status); };
  if (!site.ok()) return done(site.status());
  if (call.pair) pending->set_joined(executor_.messages().JoinTransfer(site.value(), id, rank, buffers, done, at));
  if (pending->has_joined()) return;
  const bool is_sent =
      executor_.messages().Arrive(site.value(), id, rank, std::move(buffers), done, Status(), helps, at);
  pending->set_helps(helps && is_sent);
}

std::shared_ptr<PendingCall> DeviceCommunicator::Send(const std::byte* bytes, int64_t size, uint32_t to,
                                                      std::string_view name) {
  return Record(bytes, nullptr, size, rank_, to, name);
}

std::shared_ptr<PendingCall> DeviceCommunicator::Receive(std::byte* bytes, int64_t size, uint32_t from,
                                                         std::string_view name) {
  return Record(nullptr, bytes, size, from, rank_, name);
}

// Ends the open transfers without messages: first those that receive, then those that send. The sender of many bytes
// waits until the receiver has read them, so two ranks that send to each other would deadlock if sends ended first.
void DeviceCommunicator::EndJoined() {
  for (const bool receives : {true, false}) {
    for (const OpenTransfer& each : open_) {
      PendingCall& transfer = *each.transfer;
      if (!transfer.has_joined() || transfer.receives() != receives) continue;
      try {
        transfer.EndJoined(executor_);
      } catch (const std::bad_alloc&) {
        transfer.End(NoMemory{{std::string(each.name), group_->name(), "none"}, rank_}.status());
      }
    }
  }
}

// Begins the open transfers that have not begun. Every transfer then ends. The const_cast is safe, because a broadcast
// never stores to the sender's result.
void DeviceCommunicator::BeginOpen() {
  for (OpenTransfer& each : open_) {
    if (std::exchange(each.has_begun, true)) continue;
    std::byte* const result = each.sent != nullptr ? const_cast<std::byte*>(each.sent) : each.received;
    const std::pair<uint32_t, uint32_t> pair(each.from, each.to);
    const Signature call{each.name, Kind::kAllReduce, Reduction::kSum, DType::kU8, each.size, true, pair};
    try {
      Begin(each.transfer, call, Find(call), each.id, each.from == rank_ ? 0 : 1,
            {{result}, {result}, nullptr, nullptr, true}, each.at);
    } catch (const std::bad_alloc&) {
      each.transfer->End(NoMemory{{std::string(each.name), group_->name(), "none"}, rank_}.status());
    }
  }
}

// Whether exactly two transfers are open, neither has begun, and they go to and from the same other rank.
bool DeviceCommunicator::IsSwap() const {
  return open_.size() == 2 && !open_[0].has_begun && !open_[1].has_begun && open_[0].from == open_[1].to &&
         open_[0].to == open_[1].from && open_[0].from != open_[0].to;
}

// Completes all open transfers by an exchange of all ranks or of the two ranks in `pair`, if the transfers have equal
// sizes and the ranks can exchange bytes. This rank must have one transfer to and one from each of the others.
void DeviceCommunicator::ExchangeOpen(const CallId& id, const std::optional<std::pair<uint32_t, uint32_t>>& pair) try {
  for (const OpenTransfer& each : open_) {
    if (each.size != open_[0].size) return;
  }
  const size_t others = open_.size() / 2;
  Buffers buffers{std::vector<const std::byte*>(others), std::vector<std::byte*>(others), nullptr, nullptr, true};
  for (const OpenTransfer& each : open_) {
    const uint32_t other = each.from == rank_ ? each.to : each.from;
    const size_t leaf = pair ? 0 : other - (other > rank_ ? 1 : 0);
    if (each.from == rank_) {
      buffers.operands[leaf] = each.sent;
    } else {
      buffers.results[leaf] = each.received;
    }
  }
  const Result<DeviceGroup::Site> site =
      Find({open_[0].name, Kind::kAllToAll, Reduction::kSum, DType::kU8, open_[0].size, false, pair});
  const uint32_t rank = pair ? (rank_ == pair->first ? 0 : 1) : rank_;
  if (!site.ok() || !executor_.messages().ExchangeOperands(site.value(), id, rank, buffers, open_[0].at)) return;
  for (OpenTransfer& each : open_) {
    each.has_begun = true;
    each.transfer->End(Status());
  }
} catch (const std::bad_alloc&) {  // the transfers can still begin one by one
}

void DeviceCommunicator::FailRecorded(const Status& why) {
  for (OpenTransfer& each : open_) {
    if (!std::exchange(each.has_begun, true)) each.transfer->End(why);
  }
}

Status DeviceCommunicator::Wait(const std::shared_ptr<PendingCall>& transfer) {
  if (IsSwap()) {
    const OpenTransfer& first = open_[0].from < open_[0].to ? open_[0] : open_[1];
    ExchangeOpen(first.id, std::pair(first.from, first.to));
  }
  BeginOpen();
  EndJoined();
  const Status status = transfer->Wait(executor_);
  const auto at =
      std::find_if(open_.begin(), open_.end(), [&](const OpenTransfer& each) { return each.transfer == transfer; });
  if (at == open_.end()) return status;  // EndOpen has already counted the transfer
  open_.erase(at);
  Count(status);
  if (!status.ok()) EndOpen();
  return status;
}

void DeviceCommunicator::CouldNotBegin() {
  ++failures_;
  EndOpen();
}

void DeviceCommunicator::EndOpen() {
  BeginOpen();
  EndJoined();
  for (const OpenTransfer& each : std::exchange(open_, {})) Count(each.transfer->Wait(executor_));
}

Status DeviceCommunicator::Exchange(const std::byte* sent, uint32_t to, std::byte* received, uint32_t from,
                                    int64_t size) {
  Receive(received, size, from, "all-to-all");
  Send(sent, size, to, "all-to-all");
  Status result;
  if (to != (rank_ + this->size() - 1) % this->size()) return result;
  const CallId id{group_->id(), calls_++, /*site=*/failures_, /*iteration=*/0};
  const bool is_pair = this->size() == 2;  // Wait exchanges the bytes of two ranks
  if (!is_pair && open_.size() == 2 * (size_t{this->size()} - 1)) ExchangeOpen(id, std::nullopt);
  while (!open_.empty()) {
    const std::shared_ptr<PendingCall> transfer = open_.front().transfer;
    const Status status = Wait(transfer);
    if (result.ok()) result = status;
  }
  return result;
}

// Records a transfer, which is a broadcast in a group of two ranks.
std::shared_ptr<PendingCall> DeviceCommunicator::Record(const std::byte* sent, std::byte* received, int64_t size,
                                                        uint32_t from, uint32_t to, std::string_view name) {
  const auto [at, is_first] = next_transfers_.try_emplace({from, to});
  CallId& next = at->second;
  if (is_first) next.communicator = group_->PairId(from, to);
  next.iteration = failures_;
  const CallId id = next;
  ++next.launch;
  open_.push_back({from, to, sent, received, size, name, id});
  return open_.back().transfer;
}

}  // namespace jaxcomm
