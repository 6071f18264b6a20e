// Another process, for Rails.
#pragma once

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

// The same bytes for several processes: a large message.
struct Rails::Outgoing {
  // Takes `done`, once the spans are not needed any more.
  Sent TakeDone() { return receivers == 0 && readers == 0 ? std::exchange(done, nullptr) : nullptr; }

  CallId call;
  std::vector<ConstSpan> spans;
  size_t receivers = 0;  // that have not confirmed it
  size_t readers = 0;    // receivers for whom a transport may still read it: it may send a part again needlessly
  Status status;
  Sent done;
  std::unique_ptr<Loss> loss;  // null: all of it must come
};

struct Rails::Peer {
  enum class State {
    kOpen,
    kLeaving,  // the rail that ended last has left, others are open
    kFailing,  // cut off: its rails are being fenced
    kLeft,
    kFailed,
  };
  struct Rail {
    enum class State {
      kNone,  // does not lead to the process
      kOpen,
      kLeft,     // carries nothing more; messages that have come over it can be taken
      kFencing,  // its transport may still bring messages
      kFenced,
      kOpening,
    };

    State state = State::kNone;
    uint32_t fences = 0, their_fences = 0;
    uint32_t calls = 0;    // of its transport that have not returned, for messages and connections
    int64_t bytes = 0;     // that the process has confirmed
    bool may_lose = true;  // the process has posted on it all lossy messages that it expects
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
    uint64_t rails;  // on which a large message is posted, as bits
  };
  struct Unconfirmed {
    std::shared_ptr<Outgoing> message;
    uint32_t rail, fences;
    int64_t bytes;
  };

  Peer(uint32_t process, uint32_t rails, const std::vector<RailTable::Range>& shares, RailTable table)
      : process(process), balance(shares), shares(shares), table(std::move(table)), rails(rails), silence(rails) {
    RecordShares();
  }

  bool is_open() const { return state == State::kOpen || state == State::kLeaving; }
  bool has_ended() const { return state == State::kLeft || state == State::kFailed; }
  // The error of messages to the process and from it.
  Status gone() const { return is_open() ? Status() : why; }
  std::optional<uint32_t> FirstRail() const;  // that is open
  bool Agrees() const;                        // the other side has fenced the same rails
  void Divide();                              // the shares, among the rails that are open
  void RecordShares();
  void RecordRates(int64_t call_bytes);
  // A large message goes out over the rail that this returns, until it is released. Returns none if that rail is not
  // open; then the message goes over the next one that opens.
  std::optional<uint32_t> Keep(const MessageId& id, const std::shared_ptr<Outgoing>& message, int64_t bytes);
  void Release(const MessageId& id, const Unconfirmed& message);
  // The notice that confirms the messages received since the last one.
  NumberedNotices::Bytes TakeReceived();
  // A small message has come; `due` gets its callback, if it was posted. An error: the message is invalid.
  Status Take(std::string_view message, const CancelledCalls& cancelled, std::vector<Due>& due);
  // A large message comes that was not posted as one. An error: it was posted as a small one.
  Status NoteEarly(const MessageId& id, int64_t bytes);
  // Stores a small message that came before its Post. Returns false if it has not come. An error: it has another size.
  Result<bool> TakeEarly(const MessageId& id, const Posted& posted);
  // No byte of the call is stored and no callback runs any more; the callbacks are handed out.
  void Cancel(const CallId& call, std::vector<Received>& received, std::vector<Sent>& sent);

  static constexpr size_t kMaxReceived = 32;  // unconfirmed messages; no call waits for their confirmation
  static constexpr size_t kMaxLargeEarly = kMaxEarlyBytes / kMaxSmall;

  const uint32_t process;
  State state = State::kOpen;
  Status why;  // the rail that ended last did; or all did, unless the peer is open
  Balance balance;
  std::vector<RailTable::Range> shares;  // of the open rails
  RailTable table;                       // made of `shares`
  std::vector<Rail> rails;
  SilentRails silence;
  MessageTable<PostedOn> posted;
  MessageTable<Unconfirmed> unconfirmed;  // large ones
  std::vector<MessageId> received;        // large ones that are not confirmed yet
  EarlyMessages early;                    // small ones
  MessageTable<int64_t> large_early;      // their bytes
  NumberedNotices notices;
  uint64_t their_taken = 0;
  std::deque<std::function<void()>> deliveries;
  bool delivering = false;
};

}  // namespace jaxcomm
