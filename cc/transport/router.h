// Combines several transports into one. Messages to a process always go over the same transport.
//
//   Router router({&local, &shm, &tcp}, {0, 1, 1, 2, 2});   // processes 1 and 2 over shm, 3 and 4 over tcp
//
// The caller owns the transports, which must outlive the router. Thread-safe, as all transports are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/transport/lossy_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Router : public Transport, public LossyTransport {
 public:
  // `routes[i]`: the index in `transports` of the transport that leads to process i.
  Router(std::vector<Transport*> transports, std::vector<uint32_t> routes)
      : transports_(std::move(transports)), routes_(std::move(routes)), used_(routes_.begin(), routes_.end()) {}

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  // Copies only if all receivers are reached over the same transport.
  bool SendCopy(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  LossyTransport* lossy() override { return this; }
  void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                 ReceivedLossy done) override;
  void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                 const LossLimit& limit, Sent done) override;
  void Flush() override;
  bool MayKeep(uint32_t process) override { return transports_[routes_[process]]->MayKeep(process); }
  void Cancel(const CallId& call) override;
  // Returns null unless one transport reaches all other processes of the exchange.
  std::unique_ptr<PendingExchange> Join(Exchange mine) override;
  Transfers* transfers(uint32_t process) override { return transports_[routes_[process]]->transfers(process); }
  void Expect() override;
  void EndExpecting() override;
  // If the other processes are reached over several transports, this function only flushes, because a thread can wait
  // on only one transport.
  void Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) override;

 private:
  const std::vector<Transport*> transports_;
  const std::vector<uint32_t> routes_;
  const std::set<uint32_t> used_;  // indices of the transports that lead to a process
};

}  // namespace jaxcomm
