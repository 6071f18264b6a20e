#include "cc/transport/udp/udp_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "cc/base/thread.h"
#include "cc/transport/spans.h"
#include "cc/transport/tcp/socket.h"
#include "cc/transport/udp/peer.h"

namespace jaxcomm {
namespace {

constexpr int64_t kCopied = 8 << 10;    // bytes up to which a message is copied rather than waited for
constexpr size_t kMaxCopied = 1 << 20;  // bytes of copies that wait for one process

}  // namespace

Result<std::unique_ptr<UdpTransport>> UdpTransport::Create(uint32_t process, Events* events) {
  std::unique_ptr<UdpTransport> transport(new UdpTransport(process, events));
  Status status = transport->Start();
  if (!status.ok()) return status;
  return transport;
}

UdpTransport::UdpTransport(uint32_t process, Events* events)
    : process_(process), events_(events), inbox_(events, &callbacks_) {}

Status UdpTransport::Start() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0 || !Watch(kWake, wake_).ok()) {
    return Status(Code::kInternal, std::string("no transport over UDP can be made: ") + std::strerror(errno));
  }
  std::optional<std::thread> thread = StartThread([this] { Work(); });
  if (!thread) return Status(Code::kInternal, "no transport over UDP can be made: the system has no thread to give");
  thread_ = std::move(*thread);
  return Status();
}

UdpTransport::~UdpTransport() {
  Stop();
  for (const auto& [process, peer] : peers_) {
    for (const int socket : {peer->path.socket, peer->path.connection}) {
      if (socket >= 0) close(socket);
    }
  }
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

void UdpTransport::Leave() {
  if (!Stop()) return;
  Lock lock(mutex_);
  for (const auto& [process, peer] : peers_) Fail(*peer, Status());  // for the reason that this process leaves
  stopping_ = false;
  RunCallbacks(lock);
}

// Whether the thread ran until now.
bool UdpTransport::Stop() {
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

Status UdpTransport::AddPeer(uint32_t process, const UdpPath& path) {
  Status status = PrepareSocket(path.connection);
  if (status.ok()) status = PrepareDatagrams(path.socket);
  if (status.ok() && (path.packet_bytes < kMinPacketBytes || path.packet_bytes > kMaxPacketBytes)) {
    status = InvalidArgument("packets of " + std::to_string(path.packet_bytes) + " bytes; they have " +
                             std::to_string(kMinPacketBytes) + " to " + std::to_string(kMaxPacketBytes));
  }
  if (status.ok()) {
    Lock lock(mutex_);
    if (process == process_) {
      status = InvalidArgument("it is this process");
    } else if (peers_.count(process)) {
      status = InvalidArgument("it has been connected already");
    } else {
      Peer& peer = *peers_.emplace(process, std::make_unique<Peer>(process, path, &inbox_)).first->second;
      status = Watch(KeyOf(process, /*is_connection=*/false), path.socket);
      if (status.ok()) status = Watch(KeyOf(process, /*is_connection=*/true), path.connection);
      if (status.ok()) return status;
      peer.gone = status;
      CloseUnused(peer);
      return status;
    }
  }
  close(path.connection);
  close(path.socket);
  return Status(status.code(), "process " + std::to_string(process) + " cannot be connected: " + status.message());
}

Status UdpTransport::Watch(uint64_t key, int socket) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) == 0) return Status();
  return Status(Code::kInternal, std::strerror(errno));
}

UdpTransport::Dropped UdpTransport::dropped(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return Dropped();
  return {found->second->forged, found->second->assembler.duplicates()};
}

void UdpTransport::Notify(uint32_t process, std::string_view notice) {
  Lock lock(mutex_);
  const Result<Peer*> found = Find(process);
  if (!found.ok()) return;
  Peer& peer = *found.value();
  if (notice.size() > kMaxNotice) {
    Fail(peer, InvalidArgument("a notice of " + std::to_string(notice.size()) + " bytes to process " +
                               std::to_string(process) + ", more than " + std::to_string(kMaxNotice)));
    return;
  }
  const ConstSpan text{reinterpret_cast<const std::byte*>(notice.data()), static_cast<int64_t>(notice.size()), 0};
  peer.queue.PushCopy({FrameType::kNotice, static_cast<uint32_t>(notice.size()), MessageId()}, {text});
  Queue(peer);
}

void UdpTransport::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
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
      Fail(*peers_.at(refusal->process), why);
      Wake();
      return;
    }
  }
  if (peer.ok() && peer.value()->assembler.waits()) {
    resumes_ = true;
    Wake();
  }
  RunOrWake(lock, was_idle);
}

void UdpTransport::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
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
      SendQueue& queue = peer.value()->queue;
      if (bytes.value() <= kCopied && queue.copied_bytes() <= kMaxCopied) {
        queue.PushCopy(header, message->spans);
      } else {
        ++message->receivers;
        queue.Push(header, message);
      }
      Queue(*peer.value());
    }
  }
  Finish(std::move(message));
  RunOrWake(lock, was_idle);
}

void UdpTransport::Flush() {
  Lock lock(mutex_);
  WriteQueued(lock);
}

void UdpTransport::WriteQueued(Lock& lock) {
  std::vector<Peer*> queued;
  queued.swap(queued_);
  for (Peer* const peer : queued) peer->queued = false;
  for (Peer* const peer : queued) Write(lock, *peer);
}

void UdpTransport::Cancel(const CallId& call) {
  Lock lock(mutex_);
  inbox_.Cancel(call);
  for (const auto& [process, peer] : peers_) {
    peer->assembler.Cancel(call);
    peer->queue.Cancel(call);
    if (peer->gone.ok() && peer->assembler.waits()) resumes_ = true;
  }
  if (resumes_) Wake();
}

// The process, if something can be sent to it.
Result<UdpTransport::Peer*> UdpTransport::Find(uint32_t process) {
  const auto found = peers_.find(process);
  if (found == peers_.end()) {
    return InvalidArgument("process " + std::to_string(process) + " is not connected to process " +
                           std::to_string(process_));
  }
  if (!found->second->gone.ok()) return found->second->gone;
  return found->second.get();
}

void UdpTransport::Queue(Peer& peer) {
  if (!std::exchange(peer.queued, true)) queued_.push_back(&peer);
}

// One receiver of the message is done.
void UdpTransport::Finish(std::shared_ptr<Outgoing> message) {
  if (--message->receivers > 0) return;
  callbacks_.Push(message->call, [done = std::move(message->done), status = message->status] { done(status); });
}

// A callback that is due at once runs here unless others are due or running: those come first, and one that calls us
// again and again must not fill the stack.
void UdpTransport::RunOrWake(Lock& lock, bool was_idle) {
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
