// Messages of which a part may get lost on the way.
//
//   PostLossy(transport, process, id, spans, may_lose, done);      // over any transport
//   SendLossy(transport, receiver, spans, important, may_lose, done);
//
// Up to `may_lose` bytes of such a message need not arrive if they get lost, none of them in a span that is important
// to the sender. Both sides give the same `may_lose`, and the message is sent once the receiver has announced that it
// has posted it. Transports that lose nothing carry it whole.
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

// As Received; `lost`: the bytes that will never come, in ascending order. Zeros stand in their place.
using ReceivedLossy =
    std::function<void(const Status&, std::shared_ptr<const std::byte> view, const std::vector<ByteRange>& lost)>;

// The kinds of transport that can lose a part; Transport::lossy() returns theirs.
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
