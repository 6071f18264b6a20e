// Runs one device's collectives in a group of devices, through the interface that XLA needs. Collectives block until
// they have ended. Send and Receive only record a transfer; the next Wait begins all recorded transfers.
//
//   auto group = std::make_shared<DeviceGroup>("processes 0,1,2,3", devices, /*instance=*/0);
//   DeviceCommunicator communicator(executor, lists, choose, group, /*rank=*/2);
//   Status status = communicator.AllReduce(operand, result, bytes, DType::kF32, Reduction::kSum);
//   std::shared_ptr<PendingCall> sent = communicator.Send(bytes, size, /*to=*/3, "collective-permute");
//   status = communicator.Wait(sent);
//
// All devices make the same calls in the same order. A call is therefore identified by its number on the communicator,
// and a transfer by its number among the transfers between the same two devices. After a failed call, a device may have
// skipped calls that other devices still make. Therefore the identifier also contains the device's number of failed
// calls: devices with different numbers of failed calls never join one call. An all-reduce with the plan kAuto follows
// the run's current plan (plan_selector.h). All devices switch to another plan at the same call number.
//
// A device waits for its transfers before it makes another call. Two ranks that send each other equally many bytes, and
// the ranks of an all-to-all, exchange these bytes in one call without messages (operand_exchange.h). If they cannot,
// each transfer is a call of its own.
//
// Only one thread at a time uses a communicator. In a process, all communicators of a group share one DeviceGroup.
// Every wait ends at the executor's deadline at the latest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/executor.h"
#include "cc/executor/sites/message_site.h"
#include "cc/kernels/types.h"
#include "cc/program/message_registry.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Devices that call collectives together, in the order of their ranks.
class DeviceGroup {
 public:
  // `instance`: the number of earlier groups of the same devices in this process.
  DeviceGroup(std::string name, std::vector<MessageRank> devices, uint32_t instance);

  // Returns a name of the group for error texts. The name lists the ranks' processes, because device numbers mean
  // nothing to the user. The name is short even for many ranks, because the error's cause follows the name, and XLA
  // cuts long errors.
  static std::string NameOf(const std::vector<MessageRank>& devices);

  const std::string& name() const { return name_; }
  const std::vector<MessageRank>& devices() const { return devices_; }
  uint64_t id() const { return id_; }
  // Identifies the transfers from one of the group's ranks to another.
  uint64_t PairId(uint32_t from, uint32_t to) const;

  // The properties of a call that determine its site, apart from its list of messages.
  struct Signature {
    std::string_view name;  // of a string that is never destroyed
    Kind kind;
    Reduction reduction;
    DType dtype;
    int64_t bytes;  // bytes of an operand, or of one slice for an all-gather or a reduce-scatter
    bool is_in_place;
    // For a transfer: the ranks `from` and `to`. For an all-to-all of two ranks of the group: these two.
    std::optional<std::pair<uint32_t, uint32_t>> pair = std::nullopt;

    bool is_transfer() const { return pair && kind != Kind::kAllToAll; }
    auto Tie() const { return std::tie(bytes, kind, reduction, dtype, is_in_place, pair, name); }
    bool operator==(const Signature& other) const { return Tie() == other.Tie(); }
  };
  // The list of messages that a call runs.
  struct ChosenList {
    std::string list, plan;         // the list's name, "" for an all-to-all; and the list's plan, for error texts
    std::string default_list = "";  // the name of the list that a trial compares `list` with; "" without a trial

    auto Tie() const { return std::tie(list, plan, default_list); }
  };
  using Site = std::shared_ptr<MessageSite>;
  // Returns the site of such calls. Makes the site on first use.
  Result<Site> Find(const Signature& call, const ChosenList& chosen, Executor& executor, MessageRegistry& lists,
                    uint32_t process);

 private:
  static constexpr size_t kMostSites = 1024;

  using SiteKey = std::pair<Signature, ChosenList>;
  struct Precedes {
    bool operator()(const SiteKey& one, const SiteKey& other) const {
      return std::tuple_cat(one.first.Tie(), one.second.Tie()) < std::tuple_cat(other.first.Tie(), other.second.Tie());
    }
  };

  Result<Site> Make(const Signature& call, const ChosenList& chosen, MessageGroup group, Executor& executor,
                    MessageRegistry& lists, uint32_t process) const;

  const std::string name_;
  const std::vector<MessageRank> devices_;
  const uint64_t id_;
  std::mutex mutex_;
  std::map<SiteKey, Site, Precedes> sites_;
};

// One device's part in a collective call or a transfer.
class PendingCall {
 public:
  // Blocks until the call is over, at most until the executor's deadline. With `helps`, first receives messages for a
  // short time.
  Status Wait(Executor& executor);
  void End(const Status& status);
  bool is_over() const;
  // Sets whether the thread in Wait also receives messages. Called only by that thread.
  void set_helps(bool helps) { helps_ = helps; }

  // Makes this a transfer without messages. EndJoined must then be called before Wait.
  void set_joined(std::unique_ptr<MessageExecutor::JoinedTransfer> joined) { joined_ = std::move(joined); }
  bool has_joined() const { return joined_ != nullptr; }
  bool receives() const { return joined_->arriving.rank == 1; }
  void EndJoined(Executor& executor) { helps_ = executor.messages().EndTransfer(std::move(joined_)); }

 private:
  bool helps_ = false;
  std::unique_ptr<MessageExecutor::JoinedTransfer> joined_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Status> status_;
};

class DeviceCommunicator {
 public:
  using Signature = DeviceGroup::Signature;
  using ChosenList = DeviceGroup::ChosenList;
  // Returns the list of messages that a collective runs. `bytes`: the size of the collective's larger buffer.
  using ChooseList = std::function<ChosenList(Kind kind, const DeviceGroup& group, int64_t bytes)>;

  // `changes`: counts the times at which the answers of `choose` may have changed; null if they never change. Must
  // outlive the communicator.
  DeviceCommunicator(Executor& executor, MessageRegistry& lists, ChooseList choose, std::shared_ptr<DeviceGroup> group,
                     uint32_t rank, const std::atomic<uint64_t>* changes = nullptr)
      : executor_(executor),
        lists_(lists),
        choose_(std::move(choose)),
        changes_(changes),
        group_(std::move(group)),
        rank_(rank) {}

  // Destroys the joined transfers for which Wait was not called. Such a transfer and its pending call own each other,
  // so neither would be destroyed otherwise.
  ~DeviceCommunicator() {
    for (const OpenTransfer& each : open_) each.transfer->set_joined(nullptr);
  }

  const DeviceGroup& group() const { return *group_; }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(group_->devices().size()); }

  // `bytes`: the size of the whole operand. Operand and result may be the same memory.
  Status AllReduce(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype, Reduction reduction);
  // ReduceScatter and AllGather: `bytes` is the size of a rank's slice.
  Status ReduceScatter(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype, Reduction reduction);
  Status AllGather(const std::byte* operand, std::byte* result, int64_t bytes);
  // `name`: the name of the transfer's collective, for error texts; a string that is never destroyed.
  std::shared_ptr<PendingCall> Send(const std::byte* bytes, int64_t size, uint32_t to, std::string_view name);
  std::shared_ptr<PendingCall> Receive(std::byte* bytes, int64_t size, uint32_t from, std::string_view name);
  // Blocks until the transfer is over. If the transfer failed, also blocks until all other begun transfers are over,
  // because XLA frees their memory without waiting for them.
  Status Wait(const std::shared_ptr<PendingCall>& transfer);
  // Runs one part of an all-to-all: sends `size` bytes to rank `to`, and receives `size` bytes from rank `from`. XLA
  // calls Exchange once for each other rank; `to` runs from rank() + 1 to rank() - 1, modulo size(). XLA keeps the
  // memory until the last part returns. Therefore the first parts only record their transfers, and the last part runs
  // all of them.
  Status Exchange(const std::byte* sent, uint32_t to, std::byte* received, uint32_t from, int64_t size);
  // Fails the recorded transfers that have not begun. Wait then returns the error.
  void FailRecorded(const Status& why);
  // Called if a call or a Wait has thrown an exception, so that XLA gets an error. Counts the failure, then runs all
  // recorded transfers.
  void CouldNotBegin();
  // Called when a call of the device has ended. Counts the call as failed if `status` is an error.
  void Count(const Status& status) { failures_ += status.ok() ? 0 : 1; }

 private:
  // A recorded transfer for which Wait has not returned.
  struct OpenTransfer {
    uint32_t from, to;
    const std::byte* sent;  // null if this rank receives
    std::byte* received;    // null if this rank sends
    int64_t size;
    std::string_view name;
    CallId id;
    Clock::time_point at = Clock::now();
    bool has_begun = false;
    std::shared_ptr<PendingCall> transfer = std::make_shared<PendingCall>();
  };

  void BeginOpen();
  void EndOpen();
  void EndJoined();
  bool IsSwap() const;
  void ExchangeOpen(const CallId& id, const std::optional<std::pair<uint32_t, uint32_t>>& pair);
  Result<DeviceGroup::Site> Find(const Signature& call);
  Status Run(const Signature& call, const std::byte* operand, std::byte* result);
  void Begin(const std::shared_ptr<PendingCall>& pending, const Signature& call, const Result<DeviceGroup::Site>& site,
             const CallId& id, uint32_t rank, Buffers buffers, Clock::time_point at);
  std::shared_ptr<PendingCall> Record(const std::byte* sent, std::byte* received, int64_t size, uint32_t from,
                                      uint32_t to, std::string_view name);

  static constexpr size_t kMostKnown = 32;

  Executor& executor_;
  MessageRegistry& lists_;
  const ChooseList choose_;
  const std::atomic<uint64_t>* const changes_;
  const std::shared_ptr<DeviceGroup> group_;
  const uint32_t rank_;
  uint32_t calls_ = 0, failures_ = 0;
  std::vector<OpenTransfer> open_;
  std::map<std::pair<uint32_t, uint32_t>, CallId> next_transfers_;  // by `from` and `to`
  // Caches sites, because choose_ is slow. Cleared when the number of changes differs from known_at_.
  std::vector<std::pair<Signature, DeviceGroup::Site>> known_;
  uint64_t known_at_ = 0;
};

}  // namespace jaxcomm
