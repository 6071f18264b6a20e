#include "cc/transport/local/local.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace jaxcomm {
namespace {

// Copies a message. Returns false if the spans of the two sides do not cover the same bytes of the message. The two
// sides may divide these bytes into spans differently.
bool Copy(const std::vector<ConstSpan>& from, const std::vector<Span>& to) {
  size_t next = 0;
  int64_t read = 0;
  for (const Span& span : to) {
    for (int64_t stored = 0; stored < span.bytes;) {
      if (next == from.size() || from[next].at + read != span.at + stored) return false;
      const int64_t bytes = std::min(from[next].bytes - read, span.bytes - stored);
      std::memcpy(span.data + stored, from[next].data + read, static_cast<size_t>(bytes));
      stored += bytes;
      read += bytes;
      if (read == from[next].bytes) {
        ++next;
        read = 0;
      }
    }
  }
  return next == from.size();
}

}  // namespace

// A message in flight to one or several ranks.
struct LocalTransport::Outgoing {
  const std::vector<ConstSpan> spans;
  const Sent done;
  std::atomic<size_t> receivers;
};

std::shared_ptr<LocalTransport::Open> LocalTransport::BeginCopy(const CallId& call) {
  std::shared_ptr<Open>& open = open_[call];
  if (!open) open = std::make_shared<Open>();
  ++open->copies;
  return open;
}

void LocalTransport::Post(uint32_t, const MessageId& id, std::vector<Span> spans, bool, Received done) {
  Posted posted{std::move(spans), std::move(done)};
  std::shared_ptr<Open> open;
  std::shared_ptr<Outgoing> outgoing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = outgoing_.find(id);
    if (at == outgoing_.end()) {
      posted_.emplace(id, std::move(posted));
      return;
    }
    outgoing = std::move(at->second);
    outgoing_.erase(at);
    open = BeginCopy(id.call);
  }
  Move(id.call, open, posted, outgoing);
}

void LocalTransport::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  const std::shared_ptr<Outgoing> outgoing(new Outgoing{std::move(spans), std::move(done), {to.size()}});
  for (const Receiver& receiver : to) {
    std::shared_ptr<Open> open;
    Posted posted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto at = posted_.find(receiver.id);
      if (at == posted_.end()) {
        outgoing_.emplace(receiver.id, outgoing);
        continue;
      }
      posted = std::move(at->second);
      posted_.erase(at);
      open = BeginCopy(receiver.id.call);
    }
    Move(receiver.id.call, open, posted, outgoing);
  }
}

void LocalTransport::Move(const CallId& call, const std::shared_ptr<Open>& open, const Posted& posted,
                          const std::shared_ptr<Outgoing>& outgoing) {
  const bool fits = Copy(outgoing->spans, posted.spans);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--open->copies == 0) open_.erase(call);
    copied_.notify_all();
    if (open->canceled) return;
  }
  const Status status =
      fits ? Status() : Status(Code::kInternal, "sender and receiver disagree on the size of a message");
  posted.done(status, nullptr);
  if (--outgoing->receivers == 0) outgoing->done(Status());
}

void LocalTransport::Cancel(const CallId& call) {
  // The dropped callbacks are destroyed without the lock.
  std::vector<Posted> posted;
  std::vector<std::shared_ptr<Outgoing>> outgoing;
  std::unique_lock<std::mutex> lock(mutex_);
  const MessageId first{call, 0, 0, 0, 0};
  for (auto at = posted_.lower_bound(first); at != posted_.end() && at->first.call == call; at = posted_.erase(at)) {
    posted.push_back(std::move(at->second));
  }
  for (auto at = outgoing_.lower_bound(first); at != outgoing_.end() && at->first.call == call;
       at = outgoing_.erase(at)) {
    outgoing.push_back(std::move(at->second));
  }
  const auto open = open_.find(call);
  if (open == open_.end()) return;
  const std::shared_ptr<Open> copies = open->second;
  copies->canceled = true;
  copied_.wait(lock, [&] { return copies->copies == 0; });
}

}  // namespace jaxcomm
