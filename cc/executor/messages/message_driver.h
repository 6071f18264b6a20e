// Drives calls between processes: starts the sends, receives and additions that become possible, sends notices of
// arrivals and failures, and calls back the ranks that are done.
//
//   driver.Connect(transport, /*yields=*/false);
//   driver.Drive(call, call->Sent(step, status));   // starts the steps that Sent returns
//
// Thread-safe. Holds no lock while it calls the transport, a callback or the workers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/messages/call_matcher.h"
#include "cc/executor/messages/message_call.h"
#include "cc/executor/threads/call_threads.h"
#include "cc/executor/threads/completion.h"
#include "cc/executor/threads/users.h"

namespace jaxcomm {

class MessageDriver {
 public:
  struct Work {
    std::shared_ptr<MessageCall> call;
    MessageSteps steps;
  };

  // The steps that the current thread has yet to start, for all calls. A transport's callback only adds steps to the
  // turn. The thread starts these steps after it has returned from the transport, so that the stack stays small for any
  // number of messages.
  struct Turn {
    static thread_local Turn* current;

    std::deque<Work> work;
    // `call` and `rank` name the rank that is arriving on this thread. That rank's completion is put into `own` and
    // runs on this thread.
    const MessageCall* call = nullptr;
    uint32_t rank = 0;
    std::optional<Completion> own;
    bool helps = false;  // the thread runs additions itself, and leaves flushing to Transport::Help

    // Makes a turn the current turn of this thread while this object lives.
    class Current {
     public:
      explicit Current(Turn& turn) : outer_(std::exchange(current, &turn)) {}
      ~Current() { current = outer_; }
      Current(const Current&) = delete;

     private:
      Turn* const outer_;
    };
  };

  MessageDriver(CallThreads& threads, CallMatcher& calls) : threads_(threads), calls_(calls) {}

  // `yields`: whether Help yields the processor.
  void Connect(Transport* transport, bool yields) {
    yields_ = yields;
    unexpected_ = 0;
    transport_.store(transport);
  }
  void Disconnect() { transport_.store(nullptr); }
  // Null while the processes are not connected.
  Transport* transport() const { return transport_.load(); }
  bool yields() const { return yields_; }
  // The number of users of the transport, without the transport's own threads.
  std::atomic<int64_t>& users() { return users_; }

  // Starts the steps of a call. If this thread is in a turn, only adds the steps to the turn.
  void Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps);
  // Starts the steps of the turn. If memory for a large number of steps runs out, the process ends, because calls would
  // lack steps.
  void Run(Turn& turn) noexcept;

  // Whether the thread of the rank that arrived last may receive the call's messages. True for a small call if all of
  // this process's ranks have arrived and no other call is open.
  bool MayHelp(const MessageCall& call) const;
  // Receives messages and runs their additions on this thread, for a short time or until `over` returns true. Returns
  // false if another thread receives the messages.
  bool Help(Turn& turn, const std::function<bool()>& over);
  bool Help(const std::function<bool()>& over);
  // Postpones Transport::Expect for a new call until the next Help has ended.
  void ExpectAfterHelp() { ++unexpected_; }

  void SendNotice(const std::vector<uint32_t>& processes, const std::string& notice);
  // Notifies the other processes of a call that has failed here.
  void SendFailure(const MessageSite& site, const CallId& id, const Status& why);

 private:
  bool StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps);
  void Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Turn& turn);
  void ForgetTransfer(const MessageCall& call);
  void CallBack(const MessageCall& call, Completion completion);
  void Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step);
  void Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step);
  MessageStep OfGone(const MessageCall& call, const MessageStep& step) const;
  void Stop(const std::shared_ptr<MessageCall>& call);

  CallThreads& threads_;
  CallMatcher& calls_;
  std::atomic<Transport*> transport_{nullptr};
  bool yields_ = false;  // set before transport_
  std::atomic<int64_t> unexpected_{0};
  std::atomic<int64_t> users_{0};
};

}  // namespace jaxcomm
