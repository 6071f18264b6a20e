// Runs the collectives of the process's ranks: LocalExecutor those of ranks of this process alone, MessageExecutor
// those between processes. A call that is not complete at the deadline fails on every rank that waits, and on those
// that come later.
//
//   Executor executor(/*threads=*/2);
//   executor.Arrive({run_id, group}, site, rank, buffers, [](const Status& status) { ... });   // returns at once
//
// Threads are made when the first rank comes. Where the system has none to give, that rank's callback gets an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cc/executor/call_threads.h"
#include "cc/executor/local_executor.h"
#include "cc/executor/message_executor.h"
#include "cc/executor/message_site.h"
#include "cc/executor/stats.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Executor {
 public:
  using Key = LocalExecutor::Key;

  explicit Executor(unsigned num_threads)
      : local_(&threads_), messages_(&threads_), threads_(num_threads, [this](Clock::time_point now, double deadline) {
          const bool waits = local_.FailOverdue(now, deadline);
          return messages_.FailOverdue(now, deadline) || waits;
        }) {}

  // See LocalExecutor.
  void Arrive(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t rank, Buffers buffers, Done done) {
    local_.Arrive(key, site, rank, std::move(buffers), std::move(done));
  }
  void Abort(const Key& key, const std::shared_ptr<LocalSite>& site, Status why, uint32_t coming) {
    local_.Abort(key, site, std::move(why), coming);
  }
  size_t open_calls() const { return local_.open_calls(); }

  // See MessageExecutor.
  void ArriveAcross(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers,
                    Done done, const Status& refused = Status()) {
    messages_.Arrive(site, run, rank, std::move(buffers), std::move(done), refused);
  }
  void ArriveAcross(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Buffers buffers,
                    Done done, const Status& refused = Status(), bool helps = false) {
    messages_.Arrive(site, id, rank, std::move(buffers), std::move(done), refused, helps);
  }
  void RefuseAcross(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) {
    messages_.Refuse(site, run, rank, why);
  }
  bool awaits_processes() const { return messages_.waiting(); }
  bool HelpAcross(const std::function<bool()>& over) { return messages_.Help(over); }
  std::shared_ptr<ScheduleSelector> SelectorOf(const MessageSite& site, const MessageSite& other,
                                               ScheduleSelector::Rule rule) {
    return messages_.SelectorOf(site, other, rule);
  }
  uint32_t LaunchOf(const MessageSite& site, int64_t run) { return messages_.LaunchOf(site, run); }
  void Connect(Transport* transport, bool yields = false) { messages_.Connect(transport, yields); }
  Status Disconnect(Clock::time_point limit) { return messages_.Disconnect(limit); }
  Transport::Events& events() { return messages_; }
  std::vector<GoneProcess> gone() const { return messages_.gone(); }

  // Calls back so much later.
  void Delay(Clock::duration delay, Done done);

  // The call site is gone: what failed calls keep for ranks that come late may go too.
  void Forget(const LocalSite* site) { local_.Forget(site); }
  void Forget(const MessageSite* site) { messages_.Forget(site); }
  void ForgetCommunicator(uint64_t communicator) { messages_.ForgetCommunicator(communicator); }

  void SetDeadline(double seconds) { threads_.SetDeadline(seconds); }
  Stats& stats() { return stats_; }

 private:
  Stats stats_;
  LocalExecutor local_;
  MessageExecutor messages_;
  CallThreads threads_;  // destroyed first
};

}  // namespace jaxcomm
