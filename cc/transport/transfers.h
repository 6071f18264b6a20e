// Transfers of bytes between this process and one other process, without messages. The sender offers bytes, and the
// receiver takes them.
//
//   Transfers* const transfers = transport.transfers(/*process=*/3);
//   const auto offered = transfers->Offer(part, bytes, count);                        // on the sender
//   if (offered && offered->Finish(limits)) …
//   if (transfers->Take(part, result, count, limits, will_not_come)) …                // on the receiver
//   transfers->Forget(part.call);                                                     // if the call used messages
//
// If Offer, Finish or Take fails in one process, it also fails in the other, and both then use messages. There is one
// exception: Take fails alone if the processes make different calls. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cc/transport/transport.h"

namespace jaxcomm {

// One process's part in a transfer.
struct TransferPart {
  CallId call;
  uint64_t fingerprint;                      // must be equal in both processes
  std::chrono::steady_clock::time_point at;  // time at which this process arrived
};

// Bytes that this process has offered, or will offer in Finish. If the object is destroyed before Finish, it withdraws
// the offer unless the bytes have been copied.
class OfferedBytes {
 public:
  virtual ~OfferedBytes() = default;
  // Waits until the bytes may change. If they have been copied, does not wait for the receiver, which gets them even if
  // this process ends. Returns false if a limit passed or if the receiver uses messages. Must be called at most once.
  virtual bool Finish(const WaitLimits& limits) = 0;
};

class Transfers {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Transfers() = default;
  // Does not wait. The bytes must not change before Finish returns. Returns null if this process cannot offer bytes.
  // The transfers must outlive the result.
  virtual std::unique_ptr<OfferedBytes> Offer(const TransferPart& mine, const std::byte* bytes, int64_t count) = 0;
  // Waits until the sender has offered bytes, and copies them to `to`. Returns the time at which the sender arrived.
  // Returns nullopt if a limit passed, if the sender does not offer exactly `count` bytes, or if `will_not_come()` has
  // become true, which says that the sender will offer nothing from now on. The bytes at `to` are then undefined.
  virtual std::optional<Clock::time_point> Take(const TransferPart& mine, std::byte* to, int64_t count,
                                                const WaitLimits& limits,
                                                const std::function<bool()>& will_not_come) = 0;
  // Makes room for other transfers. Must be called when a call between the processes that used messages has ended in
  // this process.
  virtual void Forget(const CallId& call) = 0;
};

}  // namespace jaxcomm
