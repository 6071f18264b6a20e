#include "cc/transport/router.h"

#include <algorithm>
#include <optional>

#include "cc/transport/joined_sends.h"

namespace jaxcomm {

void Router::Notify(uint32_t process, std::string_view notice) {
  transports_[routes_[process]]->Notify(process, notice);
}

void Router::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) {
  transports_[routes_[process]]->Post(process, id, std::move(spans), accepts_view, std::move(done));
}

void Router::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  std::vector<std::vector<Receiver>> parts(transports_.size());
  for (const Receiver& receiver : to) parts[routes_[receiver.process]].push_back(receiver);
  SendParts(transports_, parts, std::move(spans), std::move(done));
}

bool Router::SendCopy(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  const auto is_elsewhere = [&](const Receiver& receiver) {
    return routes_[receiver.process] != routes_[to[0].process];
  };
  if (to.empty() || std::any_of(to.begin(), to.end(), is_elsewhere)) {
    Send(to, std::move(spans), std::move(done));
    return false;
  }
  return transports_[routes_[to[0].process]]->SendCopy(to, std::move(spans), std::move(done));
}

void Router::PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                       ReceivedLossy done) {
  jaxcomm::PostLossy(*transports_[routes_[process]], process, id, std::move(spans), limit, std::move(done));
}

void Router::SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                       const LossLimit& limit, Sent done) {
  jaxcomm::SendLossy(*transports_[routes_[to.process]], to, std::move(spans), important, limit, std::move(done));
}

void Router::Flush() {
  for (Transport* transport : transports_) transport->Flush();
}

void Router::Cancel(const CallId& call) {
  for (Transport* transport : transports_) transport->Cancel(call);
}

std::unique_ptr<PendingExchange> Router::Join(Exchange mine) {
  std::optional<uint32_t> route;
  for (size_t rank = 0; rank < mine.processes.size(); ++rank) {
    if (rank == mine.rank) continue;
    if (route.value_or(routes_[mine.processes[rank]]) != routes_[mine.processes[rank]]) return nullptr;
    route = routes_[mine.processes[rank]];
  }
  return route ? transports_[*route]->Join(std::move(mine)) : nullptr;
}

void Router::Expect() {
  for (Transport* transport : transports_) transport->Expect();
}

void Router::EndExpecting() {
  for (Transport* transport : transports_) transport->EndExpecting();
}

void Router::Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) {
  if (used_.size() > 2) return Flush();  // if only two are used, one of them leads to this process itself
  for (const uint32_t index : used_) transports_[index]->Help(limit, yields, over);
}

}  // namespace jaxcomm
