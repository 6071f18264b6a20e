#include "cc/executor/messages/message_driver.h"

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/messages/notices.h"
#include "cc/transport/transfers.h"

namespace jaxcomm {
namespace {

// The time for which an arriving rank's thread receives messages. This time suffices if the other ranks have arrived or
// will arrive soon.
constexpr std::chrono::milliseconds kHelp{1};

// After this time without progress, views whose additions wait for other messages are copied. Adding without a copy
// would be faster, but a copy releases the sender's memory, for which the missing messages may be waiting.
constexpr std::chrono::milliseconds kViewsWait{5};

}  // namespace

thread_local MessageDriver::Turn* MessageDriver::Turn::current = nullptr;

bool MessageDriver::Help(const std::function<bool()>& over) {
  Turn turn;
  const bool helped = Help(turn, over);
  for (int64_t calls = unexpected_.exchange(0); calls > 0; --calls) transport_.load()->Expect();
  return helped;
}

bool MessageDriver::MayHelp(const MessageCall& call) const {
  return call.site().leaves().is_small() && call.AllHereHaveArrived() && calls_.open() == 1;
}

// Helps for a short time only, because the thread is XLA's and other calls may need the thread.
bool MessageDriver::Help(Turn& turn, const std::function<bool()>& over) {
  const Turn::Current current(turn);
  turn.helps = true;
  Run(turn);
  bool helped = false;
  transport_.load()->Help(kHelp, yields_, [&] {
    helped = true;
    Run(turn);
    return over();
  });
  return helped;
}

void MessageDriver::Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps) {
  if (Turn::current != nullptr) {
    Turn::current->work.push_back({call, std::move(steps)});
    return;
  }
  Turn turn;
  turn.work.push_back({call, std::move(steps)});
  Run(turn);
}

void MessageDriver::Run(Turn& turn) noexcept {
  const Turn::Current current(turn);
  bool queued = false;
  for (;;) {
    for (; !turn.work.empty(); turn.work.pop_front()) {
      Work& work = turn.work.front();
      queued = StartTasks(work.call, work.steps) || queued;
      Finish(work.call, work.steps, turn);
    }
    if (!queued || turn.helps) break;
    queued = false;
    transport_.load()->Flush();
  }
}

// Starts the receives first, so that they are posted before other processes receive the arrival notice. Returns whether
// the transport must flush.
bool MessageDriver::StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps) {
  const auto each = [&](MessageTask::Kind kind, const auto& start) {
    size_t count = 0;
    for (const MessageStep& step : steps.tasks) {
      if (call->task(step).kind != kind) continue;
      start(step);
      ++count;
    }
    return count;
  };
  size_t started = each(MessageTask::Kind::kReceive, [&](const MessageStep& step) { Post(call, step); });
  if (steps.arrived) {
    const MessageSite& site = call->site();
    const uint32_t rank = *steps.arrived;
    SendNotice(site.ranks().locals()[*site.ranks().FindLocal(rank)].others,
               Encode(Arrival{call->id(), rank, site.ranks()[rank].device, site.fingerprint(), site.text()}));
  }
  started += each(MessageTask::Kind::kSend, [&](const MessageStep& step) { Send(call, step); });
  if (started > 0) Drive(call, call->Started(started));

  std::vector<std::function<void()>> jobs;
  each(MessageTask::Kind::kAdd, [&](const MessageStep& step) {
    if (call->site().leaves().is_small() || Turn::current->helps) {
      Drive(call, call->Add(step));
    } else {
      jobs.push_back([this, call, step, user = User(users_)] { Drive(call, call->Add(step)); });
    }
  });
  if (!jobs.empty()) threads_.workers().Submit(std::move(jobs));
  if (steps.keeps_too_much) {
    threads_.timer().After(
        kViewsWait, [this, call, user = User(users_)] { Drive(call, call->CopyViews(Clock::now() - kViewsWait)); });
  }
  return started > 0 || steps.arrived;
}

// Runs the callbacks last, because the transport may be closed after the last callback.
void MessageDriver::Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Turn& turn) {
  if (steps.over && calls_.Close(*call)) {
    ForgetTransfer(*call);
    transport_.load()->EndExpecting();
  }
  if (steps.failed) SendFailure(call->site(), call->id(), call->failure());
  if (steps.ended) {
    ForgetTransfer(*call);
    transport_.load()->EndExpecting();
    Stop(call);
  }
  for (Completion& completion : steps.completions) {
    if (turn.call == call.get() && turn.rank == completion.rank) {
      turn.own = std::move(completion);
    } else {
      CallBack(*call, std::move(completion));
    }
  }
}

// The ranks of a call with messages may have closed a transfer before.
void MessageDriver::ForgetTransfer(const MessageCall& call) {
  if (!call.site().exchanging().is_transfer) return;
  for (const uint32_t process : call.site().ranks().others()) {
    if (Transfers* const transfers = transport_.load()->transfers(process)) transfers->Forget(call.id());
  }
}

void MessageDriver::CallBack(const MessageCall& call, Completion completion) {
  if (completion.is_quick) return completion.done(completion.status);
  threads_.CallBack(call.Describe(), std::move(completion));
}

void MessageDriver::Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
  const MessageTask& task = call->task(step);
  const uint32_t from = call->site().ranks()[call->RankOf(step.local, task.peers[0].rank)].process;
  if (task.is_lossy) {
    const MessageMemory& memory = call->memory(step.local);
    return PostLossy(*transport_.load(), from, call->Id(step, task.peers[0]), memory.Spans(task),
                     {memory.MayLose(task), call->site().LossesFrom(Clock::now())},
                     [this, call, step, from](const Status& status, std::shared_ptr<const std::byte> view,
                                              const std::vector<ByteRange>& lost) {
                       const bool may_keep = view && transport_.load()->MayKeep(from);
                       Drive(call, call->Received(step, status, std::move(view), may_keep, lost));
                     });
  }
  transport_.load()->Post(from, call->Id(step, task.peers[0]), call->memory(step.local).Spans(task),
                          call->memory(step.local).AcceptsView(task),
                          [this, call, step, from](const Status& status, std::shared_ptr<const std::byte> view) {
                            const bool may_keep = view && transport_.load()->MayKeep(from);
                            Drive(call, call->Received(step, status, std::move(view), may_keep));
                          });
}

void MessageDriver::Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
  const MessageTask& task = call->task(step);
  const std::optional<AllowedLoss>& loss = call->site().collective().loss;
  const uint32_t priority = loss ? loss->priority : kLastPriority;
  std::vector<Receiver> to;
  to.reserve(step.peers.size());
  for (const uint32_t index : step.peers) {
    const MessageTask::Peer& peer = task.peers[index];
    to.push_back({call->site().ranks()[call->RankOf(step.local, peer.rank)].process, call->Id(step, peer), priority});
  }
  const MessageMemory& memory = call->memory(step.local);
  const Sent done = [this, call, step](const Status& status) {
    Drive(call, call->Sent(status.ok() ? step : OfGone(*call, step), status));
  };
  if (!task.is_lossy) {
    if (task.waiting.empty()) return transport_.load()->Send(to, memory.ConstSpans(task), done);
    if (transport_.load()->SendCopy(to, memory.ConstSpans(task), done)) Drive(call, call->Freed(step));
    return;
  }
  SendLossy(*transport_.load(), to[0], memory.ConstSpans(task), memory.Important(task),
            {memory.MayLose(task), call->site().LossesFrom(Clock::now())}, done);
}

// Returns a step with only the first receiver whose process has ended. Returns the whole step if no receiver's process
// has ended.
MessageStep MessageDriver::OfGone(const MessageCall& call, const MessageStep& step) const {
  const MessageTask& task = call.task(step);
  for (const uint32_t index : step.peers) {
    const uint32_t rank = call.RankOf(step.local, task.peers[index].rank);
    if (calls_.IsGone(call.site().ranks()[rank].process)) return {step.local, step.task, {index}};
  }
  return step;
}

void MessageDriver::SendNotice(const std::vector<uint32_t>& processes, const std::string& notice) {
  for (const uint32_t process : processes) transport_.load()->Notify(process, notice);
}

// If ranks disagree about the call, notifies the processes of all groups, because other groups' ranks may disagree as
// well. Any other error, such as a missed deadline, concerns only this process's groups.
void MessageDriver::SendFailure(const MessageSite& site, const CallId& id, const Status& why) {
  SendNotice(why.code() == Code::kInvalidArgument ? site.ranks().everybody() : site.ranks().others(),
             Encode(Failure{id, why, site.step(), calls_.GoneOf(site, why)}));
  transport_.load()->Flush();
}

// Called when no task of the failed call runs any more. The transport must release the ranks' memory before the ranks
// are called back. A worker runs Cancel, because Cancel may wait for a copy and must not run on the thread that copies.
void MessageDriver::Stop(const std::shared_ptr<MessageCall>& call) {
  calls_.KeepFailed(*call);
  threads_.workers().Submit({[this, call, user = User(users_)] {
    transport_.load()->Cancel(call->id());
    for (Completion& completion : call->TakeWaiting()) CallBack(*call, std::move(completion));
  }});
}

}  // namespace jaxcomm
