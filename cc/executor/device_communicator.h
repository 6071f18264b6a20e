// One device's part in the collectives of a group of devices, as XLA asks for them: each call blocks until it is over.
//
//   auto group = std::make_shared<DeviceGroup>("processes 0,1,2,3", devices, /*instance=*/0);
//   DeviceCommunicator communicator(executor, lists, choose, group, /*rank=*/2);
//   Status status = communicator.AllReduce(operand, result, bytes, DType::kF32, Reduction::kSum);
//   std::shared_ptr<Transfer> sent = communicator.Send(bytes, size, /*to=*/3, "collective-permute");
//   status = communicator.Wait(sent);
//
// Devices call in one order, so a call is named by its number on the communicator, and a transfer by its number between
// two devices. A device that failed elsewhere may have left calls out that others still make; so the names also count
// the device's failures, and devices that failed unlike often never join one call. An all-reduce whose plan is kAuto
// follows the plan that the run switches to at a number of a call.
//
// A communicator is one thread's at a time; those of one process share their group. Every wait ends by the executor's
// deadline.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/executor.h"
#include "cc/executor/message_site.h"
#include "cc/kernels/types.h"
#include "cc/program/message_registry.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Devices that call collectives together, in the order of their ranks.
class DeviceGroup {
 public:
  // `instance`: how often this process had made a group of the same devices before.
  DeviceGroup(std::string name, std::vector<MessageGroup::Rank> devices, uint32_t instance);

  // For messages: by the process of each rank, as a device's number says nothing to the user. Of many ranks it is cut:
  // XLA cuts errors, in which it comes before what is wrong.
  static std::string NameOf(const std::vector<MessageGroup::Rank>& devices);

  const std::string& name() const { return name_; }
  const std::vector<MessageGroup::Rank>& devices() const { return devices_; }
  uint64_t id() const { return id_; }
  // Between two of its ranks.
  uint64_t PairId(uint32_t from, uint32_t to) const;

  // Call sites by what they do, made when first asked for.
  struct SiteKey {
    std::string name;
    std::string list;          // of messages
    std::string plan;          // that it is of, for messages to the user
    std::string default_list;  // that a trial compares it with; "": calls run one list
    Kind kind;
    Reduction reduction;
    DType dtype;
    int64_t bytes;  // of an operand, or for an all-gather and a reduce-scatter of a slice
    bool is_in_place;
    std::optional<std::pair<uint32_t, uint32_t>> pair = std::nullopt;  // of a transfer: from, to

    bool operator<(const SiteKey& other) const {
      return std::tie(list, plan, default_list, kind, reduction, dtype, bytes, is_in_place, pair, name) <
             std::tie(other.list, other.plan, other.default_list, other.kind, other.reduction, other.dtype, other.bytes,
                      other.is_in_place, other.pair, other.name);
    }
  };
  using Site = std::shared_ptr<MessageSite>;
  Result<Site> Find(const SiteKey& key, Executor& executor, MessageRegistry& lists, uint32_t process);

 private:
  static constexpr size_t kMostSites = 1024;

  Result<Site> Make(const SiteKey& key, MessageGroup group, Executor& executor, MessageRegistry& lists,
                    uint32_t process) const;

  const std::string name_;
  const std::vector<MessageGroup::Rank> devices_;
  const uint64_t id_;
  std::mutex mutex_;
  std::map<SiteKey, Site> sites_;
};

// A call that has begun.
class Transfer {
 public:
  // `helps`: the waiting thread receives messages meanwhile.
  explicit Transfer(bool helps = false) : helps_(helps) {}
  // Blocks until it is over, and helps the executor meanwhile; the executor's deadline bounds that.
  Status Wait(Executor& executor);
  void End(const Status& status);
  bool is_over() const;
  // Of the thread that waits.
  void set_helps(bool helps) { helps_ = helps; }

 private:
  bool helps_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Status> status_;
};

class DeviceCommunicator {
 public:
  struct Chosen {
    std::string list, plan;
    std::string default_list = "";  // of a list that is in its trial
  };
  // The list of messages that a collective with a larger buffer of `bytes` runs, and the list's plan.
  using ChooseList = std::function<Chosen(Kind kind, const DeviceGroup& group, int64_t bytes)>;

  DeviceCommunicator(Executor& executor, MessageRegistry& lists, ChooseList choose, std::shared_ptr<DeviceGroup> group,
                     uint32_t rank)
      : executor_(executor),
        lists_(lists),
        choose_(std::move(choose)),
        group_(std::move(group)),
        rank_(rank),
        no_memory_(std::make_shared<Transfer>()) {
    no_memory_->End(Status(Code::kInternal, kNoMemory));
  }

  const DeviceGroup& group() const { return *group_; }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(group_->devices().size()); }

  // `bytes`: of the whole operand. It may be the result's memory.
  Status AllReduce(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype, Reduction reduction);
  // `bytes`: of a rank's slice.
  Status ReduceScatter(const std::byte* operand, std::byte* result, int64_t bytes, DType dtype, Reduction reduction);
  Status AllGather(const std::byte* operand, std::byte* result, int64_t bytes);
  // `name`: of the collective that they are part of, for messages.
  std::shared_ptr<Transfer> Send(const std::byte* bytes, int64_t size, uint32_t to, const std::string& name);
  std::shared_ptr<Transfer> Receive(std::byte* bytes, int64_t size, uint32_t from, const std::string& name);
  // Blocks until a transfer of this communicator is over. XLA waits for no other one after an error, and frees the
  // memory of all; so after an error those that have begun are over, too.
  Status Wait(const std::shared_ptr<Transfer>& transfer);
  // One part of an all-to-all: XLA exchanges `size` bytes with each other rank in turn, to the rank after this one
  // first and to the rank before it last. Its memory stays until the last one returns, so all of them go on side by
  // side and end there.
  Status Exchange(const std::byte* sent, uint32_t to, std::byte* received, uint32_t from, int64_t size);
  // A call of the device's could not even begin, of which XLA gets the error: those that have begun end.
  void CouldNotBegin();
  // A call of the device's has ended.
  void Count(const Status& status) { failures_ += status.ok() ? 0 : 1; }

 private:
  void EndOpen();
  Status Run(const DeviceGroup::SiteKey& key, const std::byte* operand, std::byte* result);
  std::shared_ptr<Transfer> Begin(const DeviceGroup::SiteKey& key, const CallId& id, uint32_t rank, Buffers buffers);
  std::shared_ptr<Transfer> Move(const std::byte* sent, std::byte* received, int64_t size, uint32_t from, uint32_t to,
                                 const std::string& name);

  Executor& executor_;
  MessageRegistry& lists_;
  const ChooseList choose_;
  const std::shared_ptr<DeviceGroup> group_;
  const uint32_t rank_;
  const std::shared_ptr<Transfer> no_memory_;  // has ended with that error: where there is none for a transfer
  uint32_t calls_ = 0, failures_ = 0;
  std::vector<std::shared_ptr<Transfer>> open_;                  // not waited for so far
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> transfers_;  // so far, by from and to
};

}  // namespace jaxcomm
