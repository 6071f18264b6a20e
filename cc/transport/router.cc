#include "cc/transport/router.h"

#include <mutex>
#include <set>

namespace jaxcomm {
namespace {

// Calls back when all transports have: with the first error that one of them tells.
class Joined {
 public:
  Joined(size_t left, Sent done) : left_(left), done_(std::move(done)) {}

  void Tell(const Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (status_.ok()) status_ = status;
      if (--left_ > 0) return;
    }
    done_(status_);
  }

 private:
  std::mutex mutex_;
  size_t left_;
  Status status_;
  const Sent done_;
};

}  // namespace

void Router::Notify(uint32_t process, std::string_view notice) {
  transports_[routes_[process]]->Notify(process, notice);
}

void Router::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) {
  transports_[routes_[process]]->Post(process, id, std::move(spans), accepts_view, std::move(done));
}

void Router::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  std::vector<std::vector<Receiver>> parts(transports_.size());
  size_t count = 0;
  for (const Receiver& receiver : to) {
    std::vector<Receiver>& part = parts[routes_[receiver.process]];
    count += part.empty() ? 1 : 0;
    part.push_back(receiver);
  }
  if (count == 0) return done(Status());
  if (count == 1) return transports_[routes_[to[0].process]]->Send(to, std::move(spans), std::move(done));
  const auto joined = std::make_shared<Joined>(count, std::move(done));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    transports_[i]->Send(parts[i], spans, [joined](const Status& status) { joined->Tell(status); });
  }
}

void Router::Flush() {
  for (Transport* transport : transports_) transport->Flush();
}

void Router::Cancel(const CallId& call) {
  for (Transport* transport : transports_) transport->Cancel(call);
}

void Router::Expect() {
  for (Transport* transport : transports_) transport->Expect();
}

void Router::EndExpecting() {
  for (Transport* transport : transports_) transport->EndExpecting();
}

void Router::Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) {
  const std::set<uint32_t> used(routes_.begin(), routes_.end());
  if (used.size() > 2) return Flush();  // this process has one for itself
  for (const uint32_t index : used) transports_[index]->Help(limit, over);
}

}  // namespace jaxcomm
