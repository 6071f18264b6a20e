// Copies messages between ranks of one process, as soon as both Send and Post have been called.
//
//   LocalTransport transport;
//   transport.Send({{process, id}}, spans, sent);
//   transport.Post(process, id, spans, /*accepts_view=*/true, received);   // copies, then runs both callbacks
//
// Callbacks run inside the later of the two calls. Messages never arrive as views: an in-place sum waits until its own
// operand has been read, so two ranks that hold views of each other's operands would deadlock.
// Notify does nothing, because ranks of one process need no notices.
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
  // A call with copies in progress.
  struct Open {
    int copies = 0;  // number of copies in progress
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
  std::map<CallId, std::shared_ptr<Open>> open_;
  std::map<MessageId, Posted> posted_;
  std::map<MessageId, std::shared_ptr<Outgoing>> outgoing_;
};

}  // namespace jaxcomm
