// The state that Rails keeps for another process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/message_table.h"
#include "cc/transport/posted.h"
#include "cc/transport/rails/balance.h"
#include "cc/transport/rails/numbered_notices.h"
#include "cc/transport/rails/rail_history.h"
#include "cc/transport/rails/rail_table.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/rails/silent_rails.h"

namespace jaxcomm {

// A large message that is sent to one or several processes.
struct Rails::Outgoing {
  // Returns `done` if the spans are no longer needed, otherwise null.
  Sent TakeDone() { return receivers == 0 && readers == 0 ? std::exchange(done, nullptr) : nullptr; }

  ~Outgoing() {
    if (copy) *all_copied_bytes -= copied_bytes;
  }
  // Copies the bytes of the spans and returns true. Returns false if all copies together would exceed kMaxCopiedBytes,
  // or if memory is short.
  bool Copy(const std::shared_ptr<std::atomic<int64_t>>& all, int64_t bytes);

  CallId call;
  std::vector<ConstSpan> spans;
  std::unique_ptr<std::byte[]> copy;  // a copy of the bytes of the spans; null if they were not copied
  int64_t copied_bytes = 0;
  std::shared_ptr<std::atomic<int64_t>> all_copied_bytes;
  size_t receivers = 0;  // number of receivers that have not confirmed the message
  // Number of receivers for which a transport may still read the spans, even if only for a needless retransmission.
  size_t readers = 0;
  Status status;
  Sent done;
  std::unique_ptr<Loss> loss;  // null if every byte must arrive
};

struct Rails::Peer {
  enum class State {
    kOpen,
    kLeaving,  // the process left on the rail that ended most recently; other rails are open
    kFailing,  // the process is cut off, and its rails are being fenced
    kLeft,
    kFailed,
  };
  struct Rail {
    enum class State {
      kNone,  // the rail does not lead to the process
      kOpen,
      kLeft,     // the process left on this rail; messages that have already arrived can still be posted
      kFencing,  // the rail's transport may still deliver messages
      kFenced,
      kOpening,
    };

    State state = State::kNone;
    uint32_t fences = 0, their_fences = 0;
    uint32_t calls = 0;    // number of running calls of the rail's transport that send, post or connect
    int64_t bytes = 0;     // number of bytes that the process has confirmed
    bool may_lose = true;  // whether lossy messages may lose bytes; false from Restore until kPosted arrives
    RailHistory history;

    bool is_used() const { return state == State::kOpen || state == State::kOpening; }
    void BeginFence(const Status& why) {
      state = State::kFencing;
      history.Change(/*is_open=*/false, why.message(), RailHistory::Clock::now());
    }
    void Carry(int64_t more) {
      bytes += more;
      history.Carry(more, RailHistory::Clock::now());
    }
  };
  struct PostedOn : Posted {
    uint64_t rails;  // bitmask of the rails on which a large message is posted
  };
  struct Unconfirmed {
    std::shared_ptr<Outgoing> message;
    uint32_t rail, fences, priority;
    int64_t bytes;
  };

  Peer(uint32_t process, uint32_t rails, const std::vector<RailTable::Range>& shares, RailTable table)
      : process(process), balance(shares), shares(shares), table(std::move(table)), rails(rails), silence(rails) {
    RecordShares();
  }

  bool is_open() const { return state == State::kOpen || state == State::kLeaving; }
  bool has_ended() const { return state == State::kLeft || state == State::kFailed; }
  // Returns the error for messages to and from the process, or OK while the process is open.
  Status gone() const { return is_open() ? Status() : why; }
  std::optional<uint32_t> FirstRail() const;  // nullopt if the first rail is not open
  bool Agrees() const;                        // whether both sides have fenced each rail the same number of times
  void Divide();                              // divides the shares among the open rails
  void RecordShares();
  void RecordRates(int64_t call_bytes);
  // Records a large message as unconfirmed and returns the rail to send it over. Returns nullopt if that rail is not
  // open. The process asks for the message when a rail has opened.
  std::optional<uint32_t> Keep(const Receiver& to, const std::shared_ptr<Outgoing>& message, int64_t bytes);
  void Release(const MessageId& id, const Unconfirmed& message);
  // Returns the notice that confirms the messages received since the last such notice.
  NumberedNotices::Bytes TakeReceived();
  // Takes a small message that has arrived. If the message was posted, adds the callback of its Post to `due`. Returns
  // an error if the message is invalid.
  Status Take(std::string_view message, const CancelledCalls& cancelled, std::vector<Due>& due);
  // Records the size of a large message that arrived on a rail on which the message is not posted. Returns an error if
  // the caller has posted the message to Rails with another size.
  Status NoteEarly(const MessageId& id, int64_t bytes);
  // Copies a small message that arrived before its Post into the spans of the Post. Returns false if no such message
  // has arrived. Returns an error if the message and its Post differ in size.
  Result<bool> TakeEarly(const MessageId& id, const Posted& posted);
  // Drops the messages of the call. Moves their callbacks to `received` and `sent` without running them.
  void Cancel(const CallId& call, std::vector<Received>& received, std::vector<Sent>& sent);

  // When this number of received messages or notices is unconfirmed, this side sends a notice that confirms them. No
  // call waits for this notice.
  static constexpr size_t kMaxReceived = 32;
  static constexpr size_t kMaxLargeEarly = kMaxEarlyBytes / kMaxSmall;

  const uint32_t process;
  State state = State::kOpen;
  Status why;  // the reason why the most recently ended rail ended
  Balance balance;
  std::vector<RailTable::Range> shares;  // shares of the open rails; no longer updated after a rail has left
  RailTable table;                       // divides segments among the open rails
  // Returns the number of the call's next segment. All segments of a call to this process are numbered together. If
  // each short message numbered its segments from 0, the fastest rail would get more than its share and delay the last
  // segment of each message.
  uint32_t NextSegment(const CallId& call);

  static constexpr size_t kDividedCalls = 16;  // number of latest calls whose segments are counted
  std::array<std::pair<CallId, uint32_t>, kDividedCalls> divided_calls;
  size_t oldest_divided = 0;
  std::vector<Rail> rails;
  SilentRails silence;
  MessageTable<PostedOn> posted;
  MessageTable<Unconfirmed> unconfirmed;  // large messages to the process
  std::vector<MessageId> received;        // large messages from the process that are not confirmed yet
  EarlyMessages early;                    // small messages that arrived before their Post
  MessageTable<int64_t> large_early;      // sizes of large messages that arrived before their Post, in bytes
  NumberedNotices notices;
  uint64_t their_taken = 0;
  std::deque<std::function<void()>> deliveries;
  bool delivering = false;
};

}  // namespace jaxcomm
