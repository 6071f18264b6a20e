// The transport of one process of a SimulatedNetwork.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cc/transport/cancelled_calls.h"
#include "cc/transport/local/local.h"
#include "cc/transport/rail_transport.h"
#include "cc/transport/simulated/message.h"
#include "cc/transport/simulated/readers.h"
#include "cc/transport/simulated/simulated.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class SimulatedNetwork::Endpoint : public RailTransport {
 public:
  Endpoint(SimulatedNetwork& network, uint32_t self, uint32_t processes, uint32_t seed);
  ~Endpoint() override { Stop(); }

  void Connect(Events* events) { events_ = events; }
  // Ends this process, which sends nothing afterwards. Each other process gets OnPeerGone for this process, and this
  // process gets OnPeerGone for each other process.
  void Die();
  void Stop();

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override {}
  bool MayKeep(uint32_t process) override;
  void Cancel(const CallId& call) override;
  void OnEarly(Early) override {}  // not needed: the size is checked when the message is delivered
  void Withdraw(uint32_t process, const MessageId& id) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t) override { return {}; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  // An item in flight to this process: a notice, the report that a process has ended, or a message.
  struct Item {
    uint32_t from;
    std::optional<std::string> notice;
    std::optional<std::string> gone;
    std::shared_ptr<SimulatedMessage> message;
    MessageId id;
  };
  struct Posted {
    uint32_t process;
    std::vector<Span> spans;
    bool accepts_view;
    Received done;
  };

  // Arrivals (deliver.cc).
  void Take(Item item);
  void Queue(Item item);
  void Lose(uint32_t process, const std::string& why);
  std::vector<std::shared_ptr<SimulatedMessage>> DropMessages(uint32_t process);
  void Deliver();
  bool DeliverEarly(Lock& lock);
  void FailPosts(Lock& lock, uint32_t process, const Status& why);
  void Hand(Lock& lock, const Item& item);
  Status Read(const SimulatedMessage& message, const Posted& posted, std::shared_ptr<const std::byte>* view) const;

  SimulatedNetwork& network_;
  const uint32_t self_;
  Events* events_ = nullptr;
  LocalTransport local_;
  Readers readers_;
  std::atomic<bool> is_dead_{false};

  std::mutex mutex_;  // guards all members below
  std::condition_variable wake_, copied_;
  std::mt19937 random_;
  std::vector<Clock::time_point> last_notice_;  // delivery time of the latest notice, by sender
  std::multimap<Clock::time_point, Item> queue_;
  std::map<MessageId, Item> early_;
  std::map<MessageId, Posted> posted_;
  CancelledCalls cancelled_;
  std::set<uint32_t> lost_;      // processes that have ended or have been fenced
  std::set<uint32_t> notified_;  // processes whose end was reported to this process, or that were fenced
  std::map<uint32_t, int> views_;
  std::optional<std::pair<uint32_t, CallId>> copying_;  // sender and call of the message that is being copied
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jaxcomm
