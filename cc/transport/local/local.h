// Messages between ranks of one process: copied as soon as both sides are there.
//
//   LocalTransport transport;
//   transport.Send({{process, id}}, spans, sent);
//   transport.Post(process, id, spans, /*accepts_view=*/true, received);   // calls both back, here
//
// Callbacks run in the function of the side that comes second. There are no views: a sum in place waits until its own
// operand has left, so two ranks with views of each other would wait for ever. There are no notices: ranks of one
// process do not need them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

class LocalTransport : public Transport {
 public:
  void Notify(uint32_t, std::string_view) override {}
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override {}
  void Cancel(const CallId& call) override;

 private:
  // Of a call that has messages here.
  struct Open {
    int copies = 0;  // being made
    bool canceled = false;
  };
  struct Posted {
    std::vector<Span> spans;
    Received done;
  };
  struct Outgoing;

  std::shared_ptr<Open> BeginCopy(const CallId& call);
  void Move(const CallId& call, const std::shared_ptr<Open>& open, const Posted& posted,
            const std::shared_ptr<Outgoing>& outgoing);

  std::mutex mutex_;
  std::condition_variable copied_;
  std::map<CallId, std::shared_ptr<Open>> open_;  // those with copies being made
  std::map<MessageId, Posted> posted_;
  std::map<MessageId, std::shared_ptr<Outgoing>> outgoing_;
};

}  // namespace jaxcomm
