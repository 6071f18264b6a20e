#include "cc/transport/simulated/endpoint.h"

#include "cc/base/thread.h"

namespace jaxcomm {

SimulatedNetwork::Endpoint::Endpoint(SimulatedNetwork& network, uint32_t self, uint32_t processes, uint32_t seed)
    : network_(network), self_(self), random_(seed), last_notice_(processes) {
  thread_ = *StartThread([this] { Deliver(); });
}

void SimulatedNetwork::Endpoint::Die() {
  is_dead_ = true;
  for (uint32_t other = 0; other < network_.processes(); ++other) {
    if (other == self_) continue;
    network_.endpoints_[other]->Lose(self_, "process " + std::to_string(self_) + " ended");
    Lose(other, "connection lost");
  }
}

void SimulatedNetwork::Endpoint::Stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SimulatedNetwork::Endpoint::Notify(uint32_t process, std::string_view notice) {
  if (process == self_ || is_dead_.load()) return;
  network_.endpoints_[process]->Take({self_, std::string(notice), std::nullopt, nullptr, {}});
}

void SimulatedNetwork::Endpoint::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                                      Received done) {
  if (process == self_) return local_.Post(process, id, std::move(spans), accepts_view, std::move(done));
  Lock lock(mutex_);
  if (notified_.count(process) > 0 && early_.count(id) == 0) {
    lock.unlock();
    return done(Status(Code::kInternal, "process " + std::to_string(process) + " ended"), nullptr);
  }
  posted_[id] = {process, std::move(spans), accepts_view, std::move(done)};
  wake_.notify_all();
}

void SimulatedNetwork::Endpoint::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  if (is_dead_.load()) return done(Status(Code::kInternal, "this process has ended"));
  bool is_copied;
  {
    Lock lock(mutex_);
    is_copied = random_() % 2 == 0;
  }
  const auto message = std::make_shared<SimulatedMessage>(to[0].id.call, std::move(spans), std::move(done), to.size(),
                                                          &readers_, is_copied);
  std::vector<Receiver> here;
  for (const Receiver& receiver : to) {
    if (receiver.process == self_) {
      here.push_back(receiver);
    } else {
      network_.endpoints_[receiver.process]->Take({self_, std::nullopt, std::nullopt, message, receiver.id});
    }
  }
  if (here.empty()) {
    if (is_copied) message->done(Status());
    return;
  }
  local_.Send(here, message->spans, [message, here](const Status&) {
    if (message->is_copied) {
      message->done(Status());
    } else {
      message->Leave(here.size());
    }
  });
}

void SimulatedNetwork::Endpoint::Cancel(const CallId& call) {
  local_.Cancel(call);
  {
    Lock lock(mutex_);
    cancelled_.Add(call);
    for (auto at = posted_.begin(); at != posted_.end();) at = at->first.call == call ? posted_.erase(at) : ++at;
    copied_.wait(lock, [&] { return !copying_ || !(copying_->second == call); });
  }
  readers_.Cancel(call);
}

void SimulatedNetwork::Endpoint::Withdraw(uint32_t process, const MessageId& id) {
  Lock lock(mutex_);
  const auto found = posted_.find(id);
  if (found != posted_.end() && found->second.process == process) posted_.erase(found);
}

void SimulatedNetwork::Endpoint::Fence(uint32_t process, const Status&) {
  std::vector<std::shared_ptr<SimulatedMessage>> dropped;
  {
    Lock lock(mutex_);
    lost_.insert(process);
    notified_.insert(process);
    dropped = DropMessages(process);
    for (auto at = queue_.begin(); at != queue_.end();) {
      at = at->second.from == process && at->second.gone ? queue_.erase(at) : ++at;
    }
    for (auto at = posted_.begin(); at != posted_.end();) {
      at = at->second.process == process ? posted_.erase(at) : ++at;
    }
    copied_.wait(lock, [&] { return !copying_ || copying_->first != process; });
  }
  readers_.Fence(process);
  for (const auto& message : dropped) message->Lose(self_);
}

}  // namespace jaxcomm
