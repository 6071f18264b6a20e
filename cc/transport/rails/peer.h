// Another process, as Rails sees it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/rails/balance.h"
#include "cc/transport/rails/numbered_notices.h"
#include "cc/transport/rails/rail_history.h"
#include "cc/transport/rails/rail_table.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/rails/silence.h"

namespace jaxcomm {

// The same bytes for several processes: a large message.
struct Rails::Outgoing {
  // Takes `done`, once nobody needs the spans any more.
  Sent TakeDone() { return receivers == 0 && readers == 0 ? std::exchange(done, nullptr) : nullptr; }

  CallId call;
  std::vector<ConstSpan> spans;
  size_t receivers = 0;  // that have not said to have it
  size_t readers = 0;    // of them, for whom a transport may read it: one that sends again what was not lost
  Status status;
  Sent done;
  std::unique_ptr<LossOut> loss;  // none: it must come whole
};

struct Rails::Peer {
  enum class State {
    kNone,  // does not lead to it
    kOpen,
    kLeft,     // nothing more goes over it, but what has come can be taken
    kFencing,  // its transport may still bring something
    kFenced,
    kOpening,
  };
  struct Rail {
    State state = State::kNone;
    uint32_t fences = 0, their_fences = 0;
    uint32_t calls = 0;    // of its transport, for messages and connections, that have not returned
    int64_t bytes = 0;     // that the other side is known to have
    bool may_lose = true;  // the other side has posted on it what it expects
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
  struct Posted {
    std::vector<Span> spans;
    bool accepts_view;
    Received done;
    int64_t bytes;
    uint64_t on;                   // of a large message: rails, as bits
    std::shared_ptr<LossIn> loss;  // none: it must come whole
  };
  struct Unconfirmed {
    std::shared_ptr<Outgoing> message;
    uint32_t rail, fences;
    int64_t bytes;
  };

  Peer(uint32_t rails, const std::vector<RailTable::Range>& shares, RailTable table)
      : balance(shares), shares(shares), table(std::move(table)), rails(rails), silence(rails) {
    RecordShares();
  }

  std::optional<uint32_t> FirstRail() const;  // that is open
  bool Agrees() const;                        // the other side has fenced the same rails
  void Divide();                              // the shares, among the rails that are open
  void RecordShares();
  void RecordRates(int64_t call_bytes);
  // A large message goes out, over the rail that this returns, until it is released. None is open: over one that will
  // be.
  std::optional<uint32_t> Keep(const MessageId& id, const std::shared_ptr<Outgoing>& message, int64_t bytes);
  void Release(const MessageId& id, const Unconfirmed& message);
  // What tells it the messages that it need not keep.
  NumberedNotices::Bytes TakeReceived();
  // A small message has come: what is to be called back, if it was posted. An error says what is wrong with it.
  Status Take(std::string_view message, const CancelledCalls& cancelled, std::vector<Due>& due);
  // A large message comes that has not been posted as one. An error: it has been posted as a small one.
  Status NoteEarly(const MessageId& id, int64_t bytes);
  // The small message that came before it was posted; none: it did not. An error: what came is of another size.
  Result<bool> TakeEarly(const MessageId& id, const std::vector<Span>& spans, int64_t bytes);
  // Nothing of the call is stored or called back any more; what its callbacks own.
  void Cancel(const CallId& call, std::vector<Received>& received, std::vector<Sent>& sent);

  static constexpr size_t kMaxReceived = 32;      // that it is not told at once; none of them keeps a call from ending
  static constexpr int64_t kEarlyOverhead = 256;  // bytes, so that small messages too are bounded
  static constexpr size_t kMaxLargeEarly = kMaxEarlyBytes / kMaxSmall;

  Balance balance;
  std::vector<RailTable::Range> shares;  // of the rails that are open
  RailTable table;                       // by which segments go
  std::vector<Rail> rails;
  Silence silence;
  std::map<MessageId, Posted> posted;
  std::map<MessageId, Unconfirmed> unconfirmed;  // large ones
  std::vector<MessageId> received;               // large ones, and not told
  std::map<MessageId, std::string> early;        // small ones that have not been posted
  int64_t early_bytes = 0;                       // of those, with the overhead
  std::map<MessageId, int64_t> large_early;      // bytes of large ones that had not been posted when they came
  NumberedNotices notices;
  uint64_t their_taken = 0;
  std::deque<std::function<void()>> deliveries;
  bool delivering = false;
  Status end;            // of the rail that ended last
  bool is_left = false;  // by the process's own word, or this one's
  Status gone;           // ok: it is not
  bool told = false;     // that it is
};

}  // namespace jaxcomm
