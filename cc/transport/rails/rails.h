// One transport made of several, of any kind, that lead to the same processes: rails.
//
//   Rails rails(/*processes=*/4, /*rails=*/2, &events);
//   ... make each rail's transport, with rails.events(0), rails.events(1) as its Events ...
//   rails.Connect({&eth0, &eth1});
//   rails.AddProcess(3, table, {0, 1});   // before its rails may bring anything
//
// The segments of a message go over the rails that the process's table names, which is the same on the other side.
// Notices go where calls of no byte do, on the process's first rail; so do all messages of calls that the table does
// not split. A process is gone once all of its rails are. When one of them fails the others are disconnected: no
// segment waits for one that never comes. Rails of a process that leaves end one by one, each behind what it had to
// carry.
//
// The transports are the caller's. They have run their last callback before this ends. Thread-safe, as they are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/transport/rails/rail_table.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Rails : public Transport {
 public:
  Rails(uint32_t processes, uint32_t rails, Events* events);

  Events* events(uint32_t rail) { return &listeners_[rail]; }
  void Connect(std::vector<Transport*> rails) { rails_ = std::move(rails); }
  // `connected`: the rails that lead to it. An error: the table names another one.
  Status AddProcess(uint32_t process, RailTable table, std::vector<uint32_t> connected);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
  void Cancel(const CallId& call) override;
  void Disconnect(uint32_t process, const Status& why) override;
  void Expect() override;
  void EndExpecting() override;
  // Only if all processes have one first rail, on which small calls are: a thread cannot sleep on two.
  void Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) override;

 private:
  class Listener : public Events {
   public:
    void OnNotice(uint32_t process, std::string_view notice) override { owner->events_->OnNotice(process, notice); }
    void OnPeerGone(uint32_t process, const Status& why) override { owner->End(process, rail, why, /*left=*/false); }
    void OnPeerLeft(uint32_t process, const Status& why) override { owner->End(process, rail, why, /*left=*/true); }

    Rails* owner;
    uint32_t rail;
  };
  struct Process {
    RailTable table;
    std::vector<uint32_t> open;  // rails
    bool failed;
    Status why;  // it is gone, if it is
  };

  uint32_t RailTo(uint32_t process, const MessageId& id) const;
  uint32_t FirstRailTo(uint32_t process) const { return RailTo(process, MessageId()); }
  // Whether a thread may help, on the first rail; the others need not hear when somebody waits.
  bool helped() const { return first_ && have_one_first_; }
  void End(uint32_t process, uint32_t rail, const Status& why, bool left);

  Events* const events_;
  std::vector<Listener> listeners_;
  std::vector<Transport*> rails_;
  std::vector<std::optional<Process>> processes_;
  std::optional<uint32_t> first_;  // of all processes
  bool have_one_first_ = true;
  std::mutex mutex_;  // of what ends
};

}  // namespace jaxcomm
