#include "cc/executor/device_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/base/hash.h"

namespace jaxcomm {
namespace {

uint64_t IdOf(const std::vector<MessageGroup::Rank>& devices, uint32_t instance) {
  std::string text = "communicator|" + std::to_string(instance);
  for (const MessageGroup::Rank& device : devices) text += "|" + std::to_string(device.device);
  return Hash(text);
}

// Up to this size the thread that calls adds.
constexpr int64_t kHelpedBytes = 1 << 20;

// Devices whose calls differ only in what they make of the operands find it here.
std::string WhereOf(const DeviceGroup::SiteKey& key) {
  static constexpr const char* kReductions[] = {"sum", "maximum", "minimum", "product"};  // in the order of Reduction
  const bool reduces = !key.pair && key.kind != Kind::kAllGather;
  const std::string what = reduces ? kReductions[static_cast<int>(key.reduction)] : "collective";
  return "a " + what + " of the program's own";
}

}  // namespace

DeviceGroup::DeviceGroup(std::string name, std::vector<MessageGroup::Rank> devices, uint32_t instance)
    : name_(std::move(name)), devices_(std::move(devices)), id_(IdOf(devices_, instance)) {}

uint64_t DeviceGroup::PairId(uint32_t from, uint32_t to) const {
  return Hash("transfer|" + std::to_string(id_) + "|" + std::to_string(from) + "|" + std::to_string(to));
}

Result<std::shared_ptr<const MessageSite>> DeviceGroup::Site(const SiteKey& key, Executor& executor,
                                                             MessageRegistry& lists, uint32_t process) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto at = sites_.find(key); at != sites_.end()) return std::shared_ptr<const MessageSite>(at->second);
  MessageGroup group{{}, key.list, {}};
  if (key.pair) {
    group.ranks = {devices_[key.pair->first], devices_[key.pair->second]};
  } else {
    group.ranks = devices_;
  }
  for (uint32_t rank = 0; rank < group.ranks.size(); ++rank) {
    group.lists.push_back(group.ranks[rank].process == process ? lists.Find(key.list, rank) : nullptr);
  }
  Result<std::shared_ptr<MessageSite>> made =
      MessageSite::Make({key.name, name_, key.plan, WhereOf(key)}, key.kind, key.reduction,
                        key.pair ? PairId(key.pair->first, key.pair->second) : id_, /*site=*/0, {group}, process);
  if (!made.ok()) return made.status();
  const std::shared_ptr<MessageSite>& site = made.value();
  if (!key.is_in_place) site->SeparateResults();
  if (key.pair) site->NameRanks({key.pair->first, key.pair->second});
  if (Status status = site->SetLeaves({{key.dtype, key.bytes}}, executor.stats()); !status.ok()) return status;
  if (sites_.size() >= kMostSites) {
    for (const auto& [oldest, forgotten] : sites_) executor.Forget(forgotten.get());
    sites_.clear();
  }
  sites_.emplace(key, site);
  return std::shared_ptr<const MessageSite>(site);
}

Status Transfer::Wait(Executor& executor) {
  const auto over = [this] { return is_over(); };
  while (helps_ && executor.HelpAcross(over) && !is_over()) {
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return status_.has_value(); });
  return *status_;
}

bool Transfer::is_over() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_.has_value();
}

void Transfer::End(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  ended_.notify_all();
}

Status DeviceCommunicator::AllReduce(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype,
                                     Reduction reduction) {
  const Chosen chosen = choose_(Kind::kAllReduce, *group_, bytes);
  return Run({"all-reduce", chosen.list, chosen.plan, Kind::kAllReduce, reduction, dtype, bytes, operand == result},
             operand, result);
}

Status DeviceCommunicator::ReduceScatter(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype,
                                         Reduction reduction) {
  const Chosen chosen = choose_(Kind::kReduceScatter, *group_, bytes * size());
  return Run({"reduce-scatter", chosen.list, chosen.plan, Kind::kReduceScatter, reduction, dtype, bytes, false},
             operand, result);
}

Status DeviceCommunicator::AllGather(const std::byte* operand, std::byte* result, int64_t bytes) {
  const Chosen chosen = choose_(Kind::kAllGather, *group_, bytes * size());
  return Run({"all-gather", chosen.list, chosen.plan, Kind::kAllGather, Reduction::kSum, DType::kU8, bytes, false},
             operand, result);
}

Status DeviceCommunicator::Run(const DeviceGroup::SiteKey& key, const std::byte* operand, std::byte* result) {
  if (size() == 1 || key.bytes == 0) {
    std::memmove(result, operand, static_cast<size_t>(key.bytes));
    return Status();
  }
  const std::shared_ptr<Transfer> call =
      Begin(key, {group_->id(), calls_++, 0, failures_}, rank_, {{operand}, {result}, nullptr, true});
  Status status = call->Wait(executor_);
  Count(status);
  return status;
}

std::shared_ptr<Transfer> DeviceCommunicator::Begin(const DeviceGroup::SiteKey& key, const CallId& id, uint32_t rank,
                                                    Buffers buffers) {
  // Additions of larger calls are for several threads.
  const bool helps = key.pair || key.kind == Kind::kAllGather || key.bytes <= kHelpedBytes;
  const auto call = std::make_shared<Transfer>(helps);
  const Result<std::shared_ptr<const MessageSite>> site =
      group_->Site(key, executor_, lists_, group_->devices()[rank_].process);
  if (site.ok()) {
    executor_.ArriveAcross(
        site.value(), id, rank, std::move(buffers), [call](const Status& status) { call->End(status); }, helps);
  } else {
    call->End(site.status());
  }
  return call;
}

std::shared_ptr<Transfer> DeviceCommunicator::Send(const std::byte* bytes, int64_t size, uint32_t to,
                                                   const std::string& name) {
  return Move(bytes, nullptr, size, rank_, to, name);
}

std::shared_ptr<Transfer> DeviceCommunicator::Receive(std::byte* bytes, int64_t size, uint32_t from,
                                                      const std::string& name) {
  return Move(nullptr, bytes, size, from, rank_, name);
}

Status DeviceCommunicator::Wait(const std::shared_ptr<Transfer>& transfer) {
  const Status status = transfer->Wait(executor_);
  const auto at = std::find(open_.begin(), open_.end(), transfer);
  if (at == open_.end()) return status;  // it has been counted
  open_.erase(at);
  Count(status);
  if (status.ok()) return status;
  for (const std::shared_ptr<Transfer>& other : std::exchange(open_, {})) Count(other->Wait(executor_));
  return status;
}

Status DeviceCommunicator::Exchange(const std::byte* sent, uint32_t to, std::byte* received, uint32_t from,
                                    int64_t size) {
  Receive(received, size, from, "all-to-all");
  Send(sent, size, to, "all-to-all");
  Status result;
  if (to != (rank_ + this->size() - 1) % this->size()) return result;
  while (!open_.empty()) {
    const std::shared_ptr<Transfer> transfer = open_.front();
    const Status status = Wait(transfer);
    if (result.ok()) result = status;
  }
  return result;
}

// A broadcast in a group of two, of which the sender's result is never stored to.
std::shared_ptr<Transfer> DeviceCommunicator::Move(const std::byte* sent, std::byte* received, int64_t size,
                                                   uint32_t from, uint32_t to, const std::string& name) {
  const CallId id{group_->PairId(from, to), transfers_[{from, to}]++, 0, failures_};
  Buffers buffers{{sent != nullptr ? sent : received}, {received}, nullptr, true};
  if (sent != nullptr) buffers.results[0] = const_cast<std::byte*>(sent);
  open_.push_back(
      Begin({name, "broadcast/flat/2", "none", Kind::kAllReduce, Reduction::kSum, DType::kU8, size, true, {{from, to}}},
            id, from == rank_ ? 0 : 1, std::move(buffers)));
  return open_.back();
}

}  // namespace jaxcomm
