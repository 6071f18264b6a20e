// Messages that may lose a part in the network.
//
//   PostLossy(transport, process, id, spans, may_lose, done);      // over any transport
//   SendLossy(transport, receiver, spans, important, may_lose, done);
//
// Up to `may_lose` bytes of such a message may be lost without a retransmission. Lost bytes of spans that the sender
// marks important are always retransmitted. Both sides pass the same `may_lose`. The sender sends after the receiver
// has announced its Post. Transports that lose nothing deliver the whole message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

// Bytes [begin, end) of a message.
struct ByteRange {
  int64_t begin, end;
};

// As Received. `lost` lists the bytes that will never arrive, in ascending order. These bytes are replaced by zeros.
using ReceivedLossy =
    std::function<void(const Status&, std::shared_ptr<const std::byte> view, const std::vector<ByteRange>& lost)>;

// The interface of transports that can lose part of a message; see Transport::lossy().
class LossyTransport {
 public:
  static constexpr size_t kMaxSpans = 1024;

  virtual ~LossyTransport() = default;

  virtual void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, int64_t may_lose,
                         ReceivedLossy done) = 0;
  virtual void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                         int64_t may_lose, Sent done) = 0;
};

inline void PostLossy(Transport& transport, uint32_t process, const MessageId& id, std::vector<Span> spans,
                      int64_t may_lose, ReceivedLossy done) {
  if (LossyTransport* const lossy = transport.lossy()) {
    return lossy->PostLossy(process, id, std::move(spans), may_lose, std::move(done));
  }
  transport.Post(process, id, std::move(spans), /*accepts_view=*/true,
                 [done = std::move(done)](const Status& status, std::shared_ptr<const std::byte> view) {
                   done(status, std::move(view), {});
                 });
}

inline void SendLossy(Transport& transport, const Receiver& to, std::vector<ConstSpan> spans,
                      const std::vector<bool>& important, int64_t may_lose, Sent done) {
  if (LossyTransport* const lossy = transport.lossy()) {
    return lossy->SendLossy(to, std::move(spans), important, may_lose, std::move(done));
  }
  transport.Send({to}, std::move(spans), std::move(done));
}

}  // namespace jaxcomm
