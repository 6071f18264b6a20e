// Drives calls: starts the sends, receives and additions that become possible, and calls back the ranks that are done.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/message_driver.h"

namespace jaxcomm {
namespace {

// A rank that arrives receives messages itself for this long: longer than the other ranks take if they have arrived, or
// soon will.
constexpr std::chrono::milliseconds kHelp{1};

// After this long without progress, views that wait for other messages are copied, so that their sender may go on.
// Copying takes longer, but the messages may be behind the views at the same sender.
constexpr std::chrono::milliseconds kViewsWait{5};

}  // namespace

thread_local MessageExecutor::Driver* MessageExecutor::Driver::current = nullptr;

bool MessageExecutor::Help(const std::function<bool()>& over) {
  const User user(users_);
  if (!is_connected()) return false;
  Driver driver;
  const bool helped = Help(driver, over);
  for (int64_t calls = unexpected_.exchange(0); calls > 0; --calls) transport_.load()->Expect();
  return helped;
}

// Of a small call the last rank of this process that arrives receives the messages itself.
bool MessageExecutor::MayHelp(const MessageCall& call) const {
  return call.site().is_small() && call.AllHereHaveArrived() && calls_.open() == 1;
}

// For a short time, as other calls may need the thread, which is XLA's.
bool MessageExecutor::Help(Driver& driver, const std::function<bool()>& over) {
  const Driver::Current current(driver);
  driver.helps = true;
  Run(driver);
  bool helped = false;
  transport_.load()->Help(kHelp, yields_, [&] {
    helped = true;
    Run(driver);
    return over();
  });
  return helped;
}

void MessageExecutor::Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps) {
  if (Driver::current != nullptr) {
    Driver::current->work.push_back({call, std::move(steps)});
    return;
  }
  Driver driver;
  driver.work.push_back({call, std::move(steps)});
  Run(driver);
}

void MessageExecutor::Run(Driver& driver) {
  const Driver::Current current(driver);
  bool queued = false;
  for (;;) {
    for (; !driver.work.empty(); driver.work.pop_front()) {
      Work& work = driver.work.front();
      queued = StartTasks(work.call, work.steps) || queued;
      Finish(work.call, work.steps, driver);
    }
    if (!queued || driver.helps) break;
    queued = false;
    transport_.load()->Flush();
  }
}

// Receives first, so that the other processes find them posted when they receive the arrival. Returns whether there is
// something to flush.
bool MessageExecutor::StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps) {
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
    SendNotice(site.locals()[*site.FindLocal(rank)].others,
               Encode(Arrival{call->id(), rank, site.ranks()[rank].device, site.fingerprint(), site.text()}));
  }
  started += each(MessageTask::Kind::kSend, [&](const MessageStep& step) { Send(call, step); });
  if (started > 0) Drive(call, call->Started(started));

  std::vector<std::function<void()>> jobs;
  each(MessageTask::Kind::kAdd, [&](const MessageStep& step) {
    if (call->site().is_small() || Driver::current->helps) {
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

// The callbacks come last, as the transport may be closed after the last of them.
void MessageExecutor::Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Driver& driver) {
  if (steps.over && calls_.Close(*call)) transport_.load()->EndExpecting();
  if (steps.failed) SendFailure(call->site(), call->id(), call->failure());
  if (steps.ended) {
    transport_.load()->EndExpecting();
    Stop(call);
  }
  for (Completion& completion : steps.completions) {
    if (driver.call == call.get() && driver.rank == completion.rank) {
      driver.own = std::move(completion);
    } else {
      CallBack(*call, std::move(completion));
    }
  }
}

void MessageExecutor::CallBack(const MessageCall& call, Completion completion) {
  if (completion.is_quick) return completion.done(completion.status);
  threads_.CallBack(call.Describe(), std::move(completion));
}

void MessageExecutor::Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
  const MessageTask& task = call->task(step);
  const uint32_t from = call->site().ranks()[call->RankOf(step.local, task.peers[0].rank)].process;
  if (task.is_lossy) {
    const MessageMemory& memory = call->memory(step.local);
    return PostLossy(*transport_.load(), from, call->Id(step, task.peers[0]), memory.Spans(task), memory.MayLose(task),
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

void MessageExecutor::Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
  const MessageTask& task = call->task(step);
  std::vector<Receiver> to;
  to.reserve(step.peers.size());
  for (const uint32_t index : step.peers) {
    const MessageTask::Peer& peer = task.peers[index];
    to.push_back({call->site().ranks()[call->RankOf(step.local, peer.rank)].process, call->Id(step, peer)});
  }
  const MessageMemory& memory = call->memory(step.local);
  const Sent done = [this, call, step](const Status& status) {
    Drive(call, call->Sent(status.ok() ? step : OfGone(*call, step), status));
  };
  if (!task.is_lossy) return transport_.load()->Send(to, memory.ConstSpans(task), done);
  SendLossy(*transport_.load(), to[0], memory.ConstSpans(task), memory.Important(task), memory.MayLose(task), done);
}

// The step for the one receiver whose process has ended, or for all receivers if no process has.
MessageStep MessageExecutor::OfGone(const MessageCall& call, const MessageStep& step) const {
  const MessageTask& task = call.task(step);
  for (const uint32_t index : step.peers) {
    const uint32_t rank = call.RankOf(step.local, task.peers[index].rank);
    if (calls_.IsGone(call.site().ranks()[rank].process)) return {step.local, step.task, {index}};
  }
  return step;
}

void MessageExecutor::SendNotice(const std::vector<uint32_t>& processes, const std::string& notice) {
  for (const uint32_t process : processes) transport_.load()->Notify(process, notice);
}

}  // namespace jaxcomm
