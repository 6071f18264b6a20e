// Messages that may lose a part in the network.
//
//   PostLossy(transport, process, id, spans, limit, done);      // over any transport
//   SendLossy(transport, receiver, spans, important, limit, done);
//
// Spans that the sender marks important always arrive. Both sides pass the same `bytes`, but each side passes its own
// `until`. The sender sends after the receiver has announced its Post. Transports that lose nothing deliver the whole
// message.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

// Limits how much of a message may be lost. Important spans are never lost and do not count.
//
// Without a time limit, only the network's losses count: lost packets are not retransmitted while they fit into
// `bytes`. With a time limit, lost packets are retransmitted. From the receiver's `until` on, the message ends as soon
// as the spans that have not completely arrived fit into `bytes`. These spans are lost as a whole, and the sender stops
// sending them.
struct LossLimit {
  using TimePoint = std::chrono::steady_clock::time_point;

  LossLimit(int64_t bytes, std::optional<TimePoint> until = std::nullopt) : bytes(bytes), until(until) {}

  int64_t bytes;
  std::optional<TimePoint> until;  // on the sender, any value means that there is a time limit
};

// Bytes [begin, end) of a message.
struct ByteRange {
  int64_t begin, end;
};

// Like Received. `lost` lists the bytes that will never arrive, in ascending order. These bytes are replaced by zeros.
using ReceivedLossy =
    std::function<void(const Status&, std::shared_ptr<const std::byte> view, const std::vector<ByteRange>& lost)>;

// The interface of transports that can lose part of a message; see Transport::lossy().
class LossyTransport {
 public:
  static constexpr size_t kMaxSpans = 1024;

  virtual ~LossyTransport() = default;

  virtual void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                         ReceivedLossy done) = 0;
  virtual void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                         const LossLimit& limit, Sent done) = 0;
};

inline void PostLossy(Transport& transport, uint32_t process, const MessageId& id, std::vector<Span> spans,
                      const LossLimit& limit, ReceivedLossy done) {
  if (LossyTransport* const lossy = transport.lossy()) {
    return lossy->PostLossy(process, id, std::move(spans), limit, std::move(done));
  }
  transport.Post(process, id, std::move(spans), /*accepts_view=*/true,
                 [done = std::move(done)](const Status& status, std::shared_ptr<const std::byte> view) {
                   done(status, std::move(view), {});
                 });
}

inline void SendLossy(Transport& transport, const Receiver& to, std::vector<ConstSpan> spans,
                      const std::vector<bool>& important, const LossLimit& limit, Sent done) {
  if (LossyTransport* const lossy = transport.lossy()) {
    return lossy->SendLossy(to, std::move(spans), important, limit, std::move(done));
  }
  transport.Send({to}, std::move(spans), std::move(done));
}

}  // namespace jaxcomm
