#include "cc/transport/socket_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/finally.h"
#include "cc/base/own_descriptors.h"
#include "cc/base/thread.h"
#include "cc/transport/spans.h"

namespace jaxcomm {
namespace {

constexpr int64_t kCopied = 8 << 10;               // maximum size of a copied message, in bytes
constexpr size_t kMaxCopied = 1 << 20;             // maximum unsent copies per process, in bytes
constexpr std::chrono::milliseconds kEnding(200);  // time that a new connection waits for the previous one to end

}  // namespace

SocketTransport::SocketTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence)
    : process_(process), events_(events), rail_(std::move(rail)), silence_(silence), inbox_(events, &callbacks_) {}

SocketTransport::~SocketTransport() {
  CloseOwn(wake_);
  CloseOwn(epoll_);
}

Status SocketTransport::Start(const char* over) {
  const std::string cannot = std::string("no transport over ") + over + " can be made: ";
  epoll_ = OpenOwn([] { return epoll_create1(EPOLL_CLOEXEC); });
  wake_ = OpenOwn([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (epoll_ < 0 || wake_ < 0 || !Watch(kWake, wake_).ok()) {
    return Status(Code::kInternal, cannot + std::strerror(errno));
  }
  std::optional<std::thread> thread = StartThread([this] { Work(); });
  if (!thread) return Status(Code::kInternal, cannot + "the system cannot start a thread");
  thread_ = std::move(*thread);
  return Status();
}

bool SocketTransport::Stop() {
  if (!thread_.joinable()) return false;
  {
    Lock lock(mutex_);
    stopping_ = true;
    Wake();
    changed_.notify_one();
  }
  thread_.join();
  return true;
}

Status SocketTransport::Watch(uint64_t key, int socket) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) == 0) return Status();
  return Status(Code::kInternal, std::strerror(errno));
}

// Also waits until no callback is due, because events of the last connection may be queued behind other callbacks.
Status SocketTransport::AwaitEnd(Lock& lock, uint32_t process) {
  const SocketPeer* const peer = PeerOf(process);
  if (!peer) return Status();
  if (peer->gone.ok()) return InvalidArgument("it has been connected already");
  const auto is_ending = [&] { return peer->is_used() || !callbacks_.empty() || callbacks_.running(); };
  for (const auto limit = Clock::now() + kEnding; is_ending() && Clock::now() < limit;) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  if (is_ending()) return InvalidArgument("its last connection has not ended yet");
  return peer->gone.ok() ? InvalidArgument("it has been connected already") : Status();
}

Status SocketTransport::Gone(uint32_t process, const std::string& why) const {
  // Other processes show this text as well, so the text names both sides.
  const std::string on = rail_.empty() ? "" : " on rail " + rail_ + " to process " + std::to_string(process_);
  return Status(Code::kInternal, "process " + std::to_string(process) + " is gone" + on + ": " + why);
}

void SocketTransport::Notify(uint32_t process, std::string_view notice) {
  Lock lock(mutex_);
  const Result<SocketPeer*> found = Find(process);
  if (!found.ok()) return;
  SocketPeer& peer = *found.value();
  if (notice.size() > kMaxNotice) {
    Fail(lock, peer,
         InvalidArgument("a notice of " + std::to_string(notice.size()) + " bytes to process " +
                         std::to_string(process) + ", more than " + std::to_string(kMaxNotice)));
    return;
  }
  const ConstSpan text{reinterpret_cast<const std::byte*>(notice.data()), static_cast<int64_t>(notice.size()), 0};
  peer.PushCopy({FrameType::kNotice, static_cast<uint32_t>(notice.size()), MessageId()}, {text}, /*priority=*/0);
  Queue(peer);
}

void SocketTransport::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                           Received done) {
  PostAs(id, {process, std::move(spans), 0, accepts_view, std::move(done), nullptr});
}

void SocketTransport::PostAs(const MessageId& id, Posted posted) {
  const Result<int64_t> bytes = CheckSpans(posted.spans);
  Lock lock(mutex_);
  if (inbox_.IsCancelled(id.call)) return;
  const bool was_idle = callbacks_.empty() && !callbacks_.running();
  const Result<SocketPeer*> peer = Find(posted.process);
  if (!bytes.ok()) {
    callbacks_.Push(id.call, [done = std::move(posted.done), why = bytes.status()] { done(why, nullptr); });
  } else {
    posted.bytes = bytes.value();
    std::optional<Refusal> refusal = inbox_.Post(id, std::move(posted), peer.status());
    if (refusal) {
      const Status why = CutOff(refusal->process, refusal->why);
      callbacks_.Push(id.call, [done = std::move(refusal->done), why] { done(why, nullptr); });
      Wake();
      Fail(lock, *PeerOf(refusal->process), why);
      return;
    }
  }
  if (peer.ok() && peer.value()->waits()) {
    resumes_ = true;
    Wake();
  }
  RunOrWake(lock, was_idle);
}

void SocketTransport::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  SendAs(to, std::move(spans), std::move(done),
         [](SocketPeer& peer, const Receiver& receiver, int64_t bytes, const std::shared_ptr<Outgoing>& message) {
           const Header header{FrameType::kMessage, static_cast<uint32_t>(bytes), receiver.id};
           const bool is_copied = bytes <= kCopied && peer.copied_bytes() <= kMaxCopied;
           is_copied ? peer.PushCopy(header, message->spans, receiver.priority)
                     : peer.Push(header, message, receiver.priority);
           return !is_copied;
         });
}

void SocketTransport::SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done,
                             const PushMessage& push) {
  const Result<int64_t> bytes = CheckSpans(spans);
  const CallId call = to.empty() ? CallId() : to.front().id.call;
  Lock lock(mutex_);
  if (inbox_.IsCancelled(call)) return;
  const bool was_idle = callbacks_.empty() && !callbacks_.running();
  auto message = std::make_shared<Outgoing>(Outgoing{call, std::move(spans), /*receivers=*/1, bytes.status(),
                                                     std::move(done)});  // counts this function until it calls Finish
  if (bytes.ok()) {
    for (const Receiver& receiver : to) {
      const Result<SocketPeer*> found = Find(receiver.process);
      if (!found.ok()) {
        message->status = found.status();
        continue;
      }
      if (push(*found.value(), receiver, bytes.value(), message)) ++message->receivers;
      Queue(*found.value());
    }
  }
  Finish(std::move(message));
  RunOrWake(lock, was_idle);
}

void SocketTransport::Withdraw(uint32_t process, const MessageId& id) {
  Lock lock(mutex_);
  inbox_.Withdraw(process, id);
}

void SocketTransport::ReportEnd(const SocketPeer& peer, const Status& why) {
  callbacks_.Push(std::nullopt, [events = events_, process = peer.process, left = peer.left, why] {
    left ? events->OnPeerLeft(process, why) : events->OnPeerGone(process, why);
  });
}

void SocketTransport::OnEarly(Early early) {
  Lock lock(mutex_);
  inbox_.OnEarly(std::move(early));
}

void SocketTransport::Flush() {
  Lock lock(mutex_);
  WriteQueued(lock);
}

// Returns the process, or an error if it is not connected.
Result<SocketPeer*> SocketTransport::Find(uint32_t process) {
  SocketPeer* const peer = PeerOf(process);
  if (!peer) {
    return InvalidArgument("process " + std::to_string(process) + " is not connected to process " +
                           std::to_string(process_));
  }
  if (!peer->gone.ok()) return peer->gone;
  return peer;
}

void SocketTransport::Queue(SocketPeer& peer) {
  if (!std::exchange(peer.queued, true)) queued_.push_back(&peer);
}

void SocketTransport::WriteQueued(Lock& lock) {
  std::vector<SocketPeer*> queued;
  queued.swap(queued_);
  for (SocketPeer* const peer : queued) peer->queued = false;
  for (SocketPeer* const peer : queued) Write(lock, *peer);
}

// Called when the message is finished for one receiver.
void SocketTransport::Finish(std::shared_ptr<Outgoing> message) {
  if (--message->receivers > 0) return;
  callbacks_.Push(message->call, [done = std::move(message->done), status = message->status] { done(status); });
}

// Runs one due callback at once if no other callback was due or running before (`was_idle`). Otherwise leaves the
// callback to the polling thread, for two reasons: the other callbacks must run first, and a callback that posts
// repeatedly would overflow the stack.
void SocketTransport::RunOrWake(Lock& lock, bool was_idle) {
  if (callbacks_.empty()) return;
  if (!was_idle || stopping_) {
    Wake();
    return;
  }
  const Finally end([&] {
    if (!lock.owns_lock()) lock.lock();
    callbacks_.End();
    if (!callbacks_.empty()) Wake();
  });
  // `run` is destroyed before `end` takes the lock, because objects that the callback owns may call the transport in
  // their destructors.
  const std::function<void()> run = callbacks_.Begin();
  lock.unlock();
  run();
}

}  // namespace jaxcomm
