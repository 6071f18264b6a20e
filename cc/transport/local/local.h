// Messages between ranks of one process: copied, or looked at where they lie, as soon as both sides are there.
//
//   LocalTransport transport;
//   transport.Send({{process, id}}, spans, sent);
//   transport.Post(process, id, spans, /*accepts_view=*/true, received);   // calls both back, here
//
// Callbacks run in whichever function comes second; of a message that was taken as a view, `sent` runs when the view is
// released. There are no notices: ranks of one process need none.
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
    int views = 0;   // being looked at
    bool canceled = false;
  };
  struct Posted {
    std::vector<Span> spans;
    bool accepts_view;
    Received done;
  };
  struct Outgoing;

  std::shared_ptr<Open> BeginCopy(const CallId& call);
  void Move(const CallId& call, const std::shared_ptr<Open>& open, const Posted& posted,
            const std::shared_ptr<Outgoing>& outgoing);
  bool EndView(const CallId& call, Open& open);

  std::mutex mutex_;
  std::condition_variable copied_;
  std::map<CallId, std::shared_ptr<Open>> open_;
  std::map<MessageId, Posted> posted_;
  std::map<MessageId, std::shared_ptr<Outgoing>> outgoing_;
};

}  // namespace jaxcomm
