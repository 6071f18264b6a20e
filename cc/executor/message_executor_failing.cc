// Fails the calls that cannot go on, in this process and in the others, and parts the processes of a job.
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cc/executor/message_executor.h"

namespace jaxcomm {
namespace {

// Between two looks whether the last call has ended.
constexpr std::chrono::milliseconds kPoll{1};

}  // namespace

void MessageExecutor::Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) {
  const User user(users_);
  if (is_connected()) Refuse(site, calls_.Name(site, run, rank).id, why);
}

void MessageExecutor::Refuse(const MessageSite& site, const CallId& id, const Status& why) {
  const User user(users_);
  if (!is_connected()) return;
  const std::shared_ptr<MessageCall> call = calls_.AddFailure(id, why, site.step());
  SendFailure(site, id, why);
  if (call) Drive(call, call->Fail(why, /*announce=*/false));  // for other ranks of this process
}

// The rank cannot join its call, whose ranks all end with this error.
void MessageExecutor::End(const Arriving& arriving, const Status& why) {
  try {
    Refuse(*arriving.site, arriving.id, why);
  } catch (const std::bad_alloc&) {
    // The others end at their deadline.
  }
  if (arriving.done) arriving.done(why);
}

void MessageExecutor::EndWithoutMemory(const Arriving& arriving) {
  End(arriving, NoMemory{arriving.site->NameCall(), arriving.site->NameOf(arriving.rank)}.status());
}

// Of a rank that has joined the call, which may use its buffers until it ends. Null: the rank has got its error.
void MessageExecutor::FailWithoutMemory(const std::shared_ptr<MessageCall>& call, uint32_t rank) {
  if (!call) return;
  const MessageSite& site = call->site();
  Drive(call, call->Fail(NoMemory{site.NameCall(), site.NameOf(rank)}.status(), /*announce=*/true));
}

bool MessageExecutor::FailOverdue(Clock::time_point now, double deadline) {
  const User user(users_);
  StartAllDecided(now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline)));
  for (const auto& call : calls_.All()) {
    if (const std::optional<MessageCall::Delay> delay = call->Overdue(now, deadline)) {
      Drive(call, call->Fail(calls_.DeadlineError(*call, *delay, now), /*announce=*/true));
    }
  }
  return waiting();
}

void MessageExecutor::OnFailure(uint32_t process, const Failure& failure) {
  if (failure.gone) {  // before the error that names it
    const std::string name = "process " + std::to_string(failure.gone->process);
    const std::string end = failure.gone->has_left ? " has left" : " is gone";
    const Status why(Code::kInternal, name + end + ", as process " + std::to_string(process) + " reports");
    calls_.AddReported({failure.gone->process, why, failure.gone->has_left, Clock::now()});
  }
  if (calls_.FindFinished(failure.call)) return;
  const std::shared_ptr<MessageCall> call = calls_.AddFailure(failure.call, failure.why, failure.step);
  if (call && call->site().Knows(process)) Drive(call, call->Fail(failure.why, /*announce=*/false));
  // Its messages would take the transport's room for early messages for good.
  Transport* const transport = transport_.load();
  if (!call && transport != nullptr) transport->Cancel(failure.call);
}

// Where ranks disagree, those of other groups may be wrong as well; a rank that is late concerns its group only.
void MessageExecutor::SendFailure(const MessageSite& site, const CallId& id, const Status& why) {
  SendNotice(why.code() == Code::kInvalidArgument ? site.everybody() : site.others(),
             Encode(Failure{id, why, site.step(), calls_.GoneOf(site, why)}));
  transport_.load()->Flush();
}

// Of a call that is over here, and so does not fail: other processes may wait for its ranks.
void MessageExecutor::SendDifference(const CallMatcher::Finished& call, uint32_t process, const Arrival& arrival) {
  const MessageSite& site = *call.site;
  if (arrival.rank >= site.ranks().size() || site.ranks()[arrival.rank].process != process) return;
  if (arrival.fingerprint == site.fingerprint()) return;
  SendFailure(site, arrival.call, site.Differs(call.name, arrival.rank, arrival.text, call.first));
  transport_.load()->Cancel(arrival.call);
}

void MessageExecutor::Lose(const GoneProcess& gone) {
  calls_.AddGone(gone);
  for (const auto& call : calls_.All()) {
    if (call->site().HasRankOf(gone.process)) Drive(call, call->PeerGone(gone.process, gone.why));
  }
  StartAllDecided();
}

// The failed call starts and adds nothing any more; the transport must end its part before the ranks are called back.
// Cancel may wait for a copy, so it is not for the thread that copies.
void MessageExecutor::Stop(const std::shared_ptr<MessageCall>& call) {
  calls_.KeepFailed(*call);
  threads_.workers().Submit({[this, call, user = User(users_)] {
    transport_.load()->Cancel(call->id());
    for (Completion& completion : call->TakeWaiting()) CallBack(*call, std::move(completion));
  }});
}

Status MessageExecutor::Disconnect(Clock::time_point limit) {
  closing_ = true;  // before the users are counted: later ones see it
  plans_.Fail(Status(Code::kInternal, "this process has left the job"));
  while (users_ > 0 || waiting()) {
    if (Clock::now() >= limit) {
      return Status(Code::kDeadlineExceeded,
                    "calls between the processes of the job that was shut down have not ended.\n"
                    "  Cure: wait for their results before jax.distributed.shutdown().");
    }
    std::this_thread::sleep_for(kPoll);
  }
  transport_ = nullptr;
  calls_.Clear();
  plans_.Reset();
  lost_rails_.Clear();
  std::lock_guard<std::mutex> lock(deciding_);
  selectors_.clear();
  decided_.Clear();
  return Status();
}

}  // namespace jaxcomm
