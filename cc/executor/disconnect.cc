// How the processes of a job part from each other while the process goes on, perhaps in another job.
#include <string>
#include <thread>
#include <utility>

#include "cc/executor/message_executor.h"

namespace jaxcomm {
namespace {

constexpr std::chrono::milliseconds kLook{1};

}  // namespace

Status MessageExecutor::Disconnect(Clock::time_point limit) {
  closing_ = true;  // before the users are counted: whoever comes later sees it
  while (users_ > 0 || waiting()) {
    if (Clock::now() >= limit) {
      return Status(Code::kDeadlineExceeded,
                    "calls between the processes of the job that was shut down have not ended.\n"
                    "  Cure: wait for their results before jax.distributed.shutdown().");
    }
    std::this_thread::sleep_for(kLook);
  }
  std::vector<std::pair<CallId, std::shared_ptr<MessageCall>>> calls;  // they end when the mutex is released
  BoundedMap<CallId, Finished> finished{kFinishedKept};
  std::lock_guard<std::mutex> lock(mutex_);
  transport_ = nullptr;
  calls = calls_.All();
  calls_.Clear();
  std::swap(finished, finished_);
  choices_.clear();
  last_calls_ = LastCalls();
  gone_.clear();
  reported_gone_.clear();
  names_ = CallNames();
  early_ = EarlyArrivals();
  failures_ = FailedCalls();
  return Status();
}

}  // namespace jaxcomm
