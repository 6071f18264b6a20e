#include "cc/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/thread.h"
#include "cc/transport/spans.h"
#include "cc/transport/tcp/peer.h"
#include "cc/transport/tcp/socket.h"

namespace jaxcomm {
namespace {

constexpr int64_t kCopied = 8 << 10;               // bytes up to which a message is copied rather than waited for
constexpr size_t kMaxCopied = 1 << 20;             // bytes of copies that wait for one process
constexpr std::chrono::milliseconds kEnding(200);  // that a new connection waits for the last one's end

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(uint32_t process, Events* events, std::string rail) {
  std::unique_ptr<TcpTransport> transport(new TcpTransport(process, events, std::move(rail)));
  Status status = transport->Start();
  if (!status.ok()) return status;
  return transport;
}

TcpTransport::TcpTransport(uint32_t process, Events* events, std::string rail)
    : process_(process), events_(events), rail_(std::move(rail)), inbox_(events, &callbacks_) {}

Status TcpTransport::Start() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
    return Status(Code::kInternal, std::string("no transport over TCP can be made: ") + std::strerror(errno));
  }
  std::optional<std::thread> thread = StartThread([this] { Work(); });
  if (!thread) return Status(Code::kInternal, "no transport over TCP can be made: the system has no thread to give");
  thread_ = std::move(*thread);
  return Status();
}

TcpTransport::~TcpTransport() {
  Stop();
  for (const auto& [process, peer] : peers_) {
    if (peer->socket >= 0) close(peer->socket);
  }
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

void TcpTransport::Leave() {
  if (!Stop()) return;
  Lock lock(mutex_);
  stopping_ = false;
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    peer->left = true;
    Fail(lock, *peer, Status(Code::kInternal, "this process has left the job"));
  }
  RunCallbacks(lock);
}

// Whether the thread ran until now.
bool TcpTransport::Stop() {
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

Status TcpTransport::AddPeer(uint32_t process, int socket) {
  Status status = PrepareSocket(socket);
  if (status.ok()) {
    Lock lock(mutex_);
    const auto limit = std::chrono::steady_clock::now() + kEnding;
    while (IsEnding(process) && std::chrono::steady_clock::now() < limit) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
    status = process == process_ ? InvalidArgument("it is this process") : Connect(process, socket);
    if (status.ok()) return status;
  }
  close(socket);
  return Status(status.code(), "process " + std::to_string(process) + " cannot be connected: " + status.message());
}

// Its last connection has ended, but what it had to say is still under way, and may be behind others' callbacks.
bool TcpTransport::IsEnding(uint32_t process) const {
  const auto found = peers_.find(process);
  if (found == peers_.end() || found->second->gone.ok()) return false;
  return found->second->writing || !callbacks_.empty() || callbacks_.running();
}

Status TcpTransport::Connect(uint32_t process, int socket) {
  std::unique_ptr<Peer>& peer = peers_[process];
  if (!peer) {
    peer = std::make_unique<Peer>(process, &inbox_);
  } else if (peer->gone.ok()) {
    return InvalidArgument("it has been connected already");
  } else if (IsEnding(process)) {
    return InvalidArgument("its last connection has not ended yet");
  } else {
    peer->Restart();
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = process;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) {
    peer->gone = Status(Code::kInternal, std::strerror(errno));
    return peer->gone;
  }
  peer->socket = socket;
  peer->interest = EPOLLIN;
  return Status();
}

void TcpTransport::Notify(uint32_t process, std::string_view notice) {
  Lock lock(mutex_);
  const Result<Peer*> found = Find(process);
  if (!found.ok()) return;
  Peer& peer = *found.value();
  if (notice.size() > kMaxNotice) {
    Fail(lock, peer,
         InvalidArgument("a notice of " + std::to_string(notice.size()) + " bytes to process " +
                         std::to_string(process) + ", more than " + std::to_string(kMaxNotice)));
    return;
  }
  const ConstSpan text{reinterpret_cast<const std::byte*>(notice.data()), static_cast<int64_t>(notice.size()), 0};
  peer.outbox.PushCopy({FrameType::kNotice, static_cast<uint32_t>(notice.size()), MessageId()}, {text});
  Queue(peer);
}

void TcpTransport::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                        Received done) {
  const Result<int64_t> bytes = CheckSpans(spans);
  Lock lock(mutex_);
  if (inbox_.IsCancelled(id.call)) return;
  const bool was_idle = callbacks_.empty() && !callbacks_.running();
  const Result<Peer*> peer = Find(process);
  if (!bytes.ok()) {
    callbacks_.Push(id.call, [done = std::move(done), why = bytes.status()] { done(why, nullptr); });
  } else {
    std::optional<Refusal> refusal =
        inbox_.Post(id, {process, std::move(spans), bytes.value(), accepts_view, std::move(done)}, peer.status());
    if (refusal) {
      const Status why = CutOff(refusal->process, refusal->why);
      callbacks_.Push(id.call, [done = std::move(refusal->done), why] { done(why, nullptr); });
      Wake();
      Fail(lock, *peers_.at(refusal->process), why);
      return;
    }
  }
  if (peer.ok() && peer.value()->reader.waits()) {
    resumes_ = true;
    Wake();
  }
  RunOrWake(lock, was_idle);
}

void TcpTransport::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  const Result<int64_t> bytes = CheckSpans(spans);
  const CallId call = to.empty() ? CallId() : to.front().id.call;
  Lock lock(mutex_);
  if (inbox_.IsCancelled(call)) return;
  const bool was_idle = callbacks_.empty() && !callbacks_.running();
  auto message = std::make_shared<Outgoing>(
      Outgoing{call, std::move(spans), /*receivers=*/1, bytes.status(), std::move(done)});  // this function is one
  if (bytes.ok()) {
    for (const Receiver& receiver : to) {
      const Header header{FrameType::kMessage, static_cast<uint32_t>(bytes.value()), receiver.id};
      const Result<Peer*> peer = Find(receiver.process);
      if (!peer.ok()) {
        message->status = peer.status();
        continue;
      }
      Outbox& outbox = peer.value()->outbox;
      if (bytes.value() <= kCopied && outbox.copied_bytes() <= kMaxCopied) {
        outbox.PushCopy(header, message->spans);
      } else {
        ++message->receivers;
        outbox.Push(header, message);
      }
      Queue(*peer.value());
    }
  }
  Finish(std::move(message));
  RunOrWake(lock, was_idle);
}

void TcpTransport::Flush() {
  Lock lock(mutex_);
  WriteQueued(lock);
}

void TcpTransport::WriteQueued(Lock& lock) {
  std::vector<Peer*> queued;
  queued.swap(queued_);
  for (Peer* const peer : queued) peer->queued = false;
  for (Peer* const peer : queued) Write(lock, *peer);
}

void TcpTransport::Cancel(const CallId& call) {
  Lock lock(mutex_);
  gate_.Close(lock);
  inbox_.Cancel(call);
  for (const auto& [process, peer] : peers_) {
    peer->reader.Cancel(call);
    peer->outbox.Cancel(call);
    if (peer->reader.waits()) resumes_ = true;
  }
  if (resumes_) Wake();
  gate_.Open();
}

void TcpTransport::Withdraw(uint32_t process, const MessageId& id) {
  Lock lock(mutex_);
  inbox_.Withdraw(process, id);
}

void TcpTransport::Fence(uint32_t process, const Status& why) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  gate_.Close(lock);
  if (peer.gone.ok()) {
    ResetAtClose(peer.socket);  // what the kernel has to send would go on for long, and nobody would read it
    Close(peer, why);
  }
  peer.reader.TakeArrival();
  inbox_.Drop(process);
  gate_.Open();
  if (!callbacks_.empty()) Wake();  // of what was to be sent; a new connection waits for them
}

SendProgress TcpTransport::ProgressTo(uint32_t process) {
  Lock lock(mutex_);
  const Result<Peer*> peer = Find(process);
  return peer.ok() ? ProgressOf(peer.value()->socket) : SendProgress();
}

// The process, if something can be sent to it.
Result<TcpTransport::Peer*> TcpTransport::Find(uint32_t process) {
  const auto found = peers_.find(process);
  if (found == peers_.end()) {
    return InvalidArgument("process " + std::to_string(process) + " is not connected to process " +
                           std::to_string(process_));
  }
  if (!found->second->gone.ok()) return found->second->gone;
  return found->second.get();
}

void TcpTransport::Queue(Peer& peer) {
  if (!std::exchange(peer.queued, true)) queued_.push_back(&peer);
}

// One receiver of the message is done.
void TcpTransport::Finish(std::shared_ptr<Outgoing> message) {
  if (--message->receivers > 0) return;
  callbacks_.Push(message->call, [done = std::move(message->done), status = message->status] { done(status); });
}

// A callback that is due at once runs here unless others are due or running: those come first, and one that calls us
// again and again must not fill the stack.
void TcpTransport::RunOrWake(Lock& lock, bool was_idle) {
  if (callbacks_.empty()) return;
  if (!was_idle || stopping_) {
    Wake();
    return;
  }
  std::function<void()> run = callbacks_.Begin();
  lock.unlock();
  run();
  run = nullptr;
  lock.lock();
  callbacks_.End();
  if (!callbacks_.empty()) Wake();
}

}  // namespace jaxcomm
