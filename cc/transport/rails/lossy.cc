// Lossy messages over rails.
//
// A lossy transport drops a message that is sent before its Post. The sender may use a restored rail before the
// receiver has repeated its earlier Posts on that rail. The rail therefore carries lossy messages without loss until
// the kPosted notice of the receiver arrives.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/little_endian.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"

namespace jaxcomm {

void Rails::PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                      ReceivedLossy done) {
  auto loss = std::make_shared<Posted::Loss>(Posted::Loss{limit, {}});
  Received received = [loss, done = std::move(done)](const Status& status, std::shared_ptr<const std::byte> view) {
    done(status, std::move(view), loss->lost);
  };
  PostAs(id, {process, std::move(spans), 0, /*accepts_view=*/false, std::move(received), std::move(loss)});
}

void Rails::SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                      const LossLimit& limit, Sent done) {
  if (spans.size() > kMaxSpans) {
    return done(InvalidArgument("a lossy message of " + std::to_string(spans.size()) + " spans, more than " +
                                std::to_string(kMaxSpans)));
  }
  SendAs({to}, std::move(spans), std::move(done), std::make_unique<Loss>(Loss{important, limit}), /*copies=*/false);
}

void Rails::SendPosted(const Lost& restored) {
  std::string bytes(1, kPosted);
  AppendNumber<uint32_t>(bytes, restored.fences);
  SendNotice(restored.process, restored.rail, bytes);
}

void Rails::ReceivePosted(uint32_t process, uint32_t rail, std::string_view bytes) {
  Lock lock(mutex_);
  Peer::Rail& restored = peers_[process]->rails[rail];
  if (NumberReader(bytes).Get<uint32_t>() == restored.fences) restored.may_lose = true;
}

// Returns whether lossy messages to the process may lose bytes on the rail. A true result stays valid during the
// caller's send: only Restore sets may_lose to false, and Restore refuses a rail on which a send runs (Rail::calls).
bool Rails::MayLose(uint32_t process, uint32_t rail) {
  Lock lock(mutex_);
  return peers_[process]->rails[rail].may_lose;
}

}  // namespace jaxcomm
