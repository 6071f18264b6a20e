// Starts what calls between processes make possible, and ends them.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/across_driver.h"

namespace jaxcomm {
namespace {

// How long a rank that arrives takes messages itself: longer than the others need if they have arrived, or soon will.
constexpr std::chrono::milliseconds kHelp{1};

// After this long without progress, views that wait for other messages are copied, so that their sender may go on. To
// copy all of them takes longer, but what they wait for may be behind them at the same sender.
constexpr std::chrono::milliseconds kViewsWait{5};

constexpr size_t kFailedKept = 256;  // calls

}  // namespace

thread_local AcrossProcesses::Driver* AcrossProcesses::Driver::current = nullptr;

bool AcrossProcesses::Help(const std::function<bool()>& over) {
  const User user(users_);
  if (!is_connected()) return false;
  Driver driver;
  const bool helped = Help(driver, over);
  for (int64_t calls = unexpected_.exchange(0); calls > 0; --calls) transport_.load()->Expect();
  return helped;
}

// Of a small call the last rank of this process that arrives takes the messages itself.
bool AcrossProcesses::MayHelp(const MessageCall& call) const {
  if (!call.site().is_small() || !call.AllHereHaveArrived()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return open_ == 1;
}

// For a short time: a thread of XLA's may be needed by other calls.
bool AcrossProcesses::Help(Driver& driver, const std::function<bool()>& over) {
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

void AcrossProcesses::Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps) {
  if (Driver::current != nullptr) {
    Driver::current->work.push_back({call, std::move(steps)});
    return;
  }
  Driver driver;
  driver.work.push_back({call, std::move(steps)});
  Run(driver);
}

void AcrossProcesses::Run(Driver& driver) {
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

// Receives first, so that the other side finds them posted when it hears of the arrival. Whether there is something to
// flush.
bool AcrossProcesses::StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps) {
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
               Encode(Arrival{call->id(), rank, site.ranks()[rank].device, site.fingerprint(), site.text(), steps.said,
                              /*waits=*/false, steps.carried}));
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
  if (!jobs.empty()) pool_.Submit(std::move(jobs));
  if (steps.keeps_too_much)
    timer_.After(kViewsWait,
                 [this, call, user = User(users_)] { Drive(call, call->CopyViews(Clock::now() - kViewsWait)); });
  return started > 0 || steps.arrived;
}

// The transport may go as soon as the last rank is called back, so that comes last.
void AcrossProcesses::Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Driver& driver) {
  if (steps.over && Close(call)) transport_.load()->EndExpecting();
  if (steps.failed) TellFailure(call->site(), call->id(), call->failure());
  if (steps.ended) {
    transport_.load()->EndExpecting();
    Stop(call);
  }
  for (Completion& completion : steps.completions) {
    if (driver.call == call.get() && driver.rank == completion.rank) {
      driver.own = std::move(completion);
    } else if (completion.is_quick) {
      completion.done(completion.status);
    } else {
      call_back_(call->Describe(), std::move(completion));
    }
  }
}

// Whether it was open until now.
bool AcrossProcesses::Close(const std::shared_ptr<MessageCall>& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (calls_.erase(call->id()) == 0) return false;
  --open_;
  if (!call->site().is_divided()) return true;
  finished_.Add(call->id(), {call->shared_site(), call->first(), call->Describe()});
  return true;
}

void AcrossProcesses::Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
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

void AcrossProcesses::Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
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

// The step for that of its receivers alone whose process is gone; for all where none is known to be.
MessageStep AcrossProcesses::OfGone(const MessageCall& call, const MessageStep& step) const {
  const MessageTask& task = call.task(step);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const uint32_t index : step.peers) {
    const uint32_t rank = call.RankOf(step.local, task.peers[index].rank);
    if (gone_.count(call.site().ranks()[rank].process) > 0) return {step.local, step.task, {index}};
  }
  return step;
}

// Nothing is being started or added any more; what the transport still does for the call must end before its ranks hear
// of it. Cancel may wait for a copy, so it is not for the thread that copies.
void AcrossProcesses::Stop(const std::shared_ptr<MessageCall>& call) {
  const Status why = call->failure();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    --open_;
    failures_.Add(call->id(), why, call->site().step());
    failed_.push_back(call->id());
    for (; failed_.size() > kFailedKept; failed_.pop_front()) calls_.erase(failed_.front());
  }
  pool_.Submit({[this, call, user = User(users_)] {
    transport_.load()->Cancel(call->id());
    for (Completion& completion : call->TakeWaiting()) call_back_(call->Describe(), std::move(completion));
  }});
}

}  // namespace jaxcomm
