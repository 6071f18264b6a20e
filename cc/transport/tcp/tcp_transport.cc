#include "cc/transport/tcp/tcp_transport.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "cc/base/thread.h"
#include "cc/transport/spans.h"
#include "cc/transport/tcp/frame_reader.h"
#include "cc/transport/tcp/socket.h"

namespace jaxcomm {
namespace {

constexpr uint64_t kWake = UINT64_MAX;  // among the events of epoll, beside the processes
constexpr int64_t kCopied = 8 << 10;    // bytes up to which a message is copied rather than waited for
constexpr size_t kMaxCopied = 1 << 20;  // bytes of copies that wait for one process
constexpr int kReads = 8;               // of one process before the others have their turn
constexpr std::chrono::seconds kDeparture(2);
constexpr std::chrono::seconds kLook(1);  // between two looks at whether hosts answer

Status Gone(uint32_t process, const std::string& why) {
  return Status(Code::kInternal, "process " + std::to_string(process) + " is gone: " + why);
}

Status CutOff(uint32_t process, const Status& why) {
  return Status(why.code(), "process " + std::to_string(process) + " has been cut off: it sent " + why.message());
}

}  // namespace

struct TcpTransport::Peer {
  Peer(uint32_t process, int socket, Inbox* inbox) : process(process), socket(socket), reader(process, inbox) {}

  const uint32_t process;
  int socket;
  FrameReader reader;
  Outbox outbox;
  uint32_t interest = 0;
  bool queued = false;
  bool writing = false;  // a thread does
  bool blocked = false;  // the kernel takes no more for now
  int write_error = 0;   // then nothing is written; what has come already is still read
  int unanswered = 0;    // looks in a row, of this process's own time: it may have been stopped itself
  Status gone;           // ok: it is not
};

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(uint32_t process, Events* events) {
  std::unique_ptr<TcpTransport> transport(new TcpTransport(process, events));
  Status status = transport->Start();
  if (!status.ok()) return status;
  return transport;
}

TcpTransport::TcpTransport(uint32_t process, Events* events)
    : process_(process), events_(events), inbox_(events, &callbacks_) {}

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
    if (peer->gone.ok()) Fail(lock, *peer, Status(Code::kInternal, "this process has left the job"));
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
  }
  thread_.join();
  return true;
}

Status TcpTransport::AddPeer(uint32_t process, int socket) {
  Status status = PrepareSocket(socket);
  if (status.ok()) {
    Lock lock(mutex_);
    if (process == process_) {
      status = InvalidArgument("it is this process");
    } else if (peers_.count(process)) {
      status = InvalidArgument("it has been connected already");
    } else {
      auto peer = std::make_unique<Peer>(process, socket, &inbox_);
      peer->interest = EPOLLIN;
      epoll_event event{};
      event.events = peer->interest;
      event.data.u64 = process;
      if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) == 0) {
        peers_.emplace(process, std::move(peer));
        return Status();
      }
      status = Status(Code::kInternal, std::strerror(errno));
    }
  }
  close(socket);
  return Status(status.code(), "process " + std::to_string(process) + " cannot be connected: " + status.message());
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

void TcpTransport::Work() {
  epoll_event events[64];
  Lock lock(mutex_);
  progress_ = std::this_thread::get_id();
  auto next_look = std::chrono::steady_clock::now() + kLook;
  while (!stopping_) {
    do {
      if (std::exchange(resumes_, false)) {
        for (const auto& [process, peer] : peers_) {
          if (peer->gone.ok() && peer->reader.waits()) CheckReader(lock, *peer, peer->reader.Resume());
        }
      }
      RunCallbacks(lock);
    } while (resumes_ && !stopping_);  // a callback may have posted what a reader waits for
    lock.unlock();
    const int count = epoll_wait(epoll_, events, 64, std::chrono::milliseconds(kLook).count());
    lock.lock();
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWake) {
        uint64_t ignored;
        has_woken_ = read(wake_, &ignored, sizeof(ignored)) < 0;
        continue;
      }
      Peer& peer = *peers_.at(static_cast<uint32_t>(events[i].data.u64));
      if (events[i].events & EPOLLOUT) {
        peer.blocked = false;
        Write(lock, peer);
        SetInterest(peer);
      }
      if (events[i].events & ~EPOLLOUT) Read(lock, peer);
    }
    if (std::chrono::steady_clock::now() >= next_look) {
      FindSilent(lock);
      next_look = std::chrono::steady_clock::now() + kLook;
    }
  }
  Depart(lock);
}

void TcpTransport::Read(Lock& lock, Peer& peer) {
  iovec vectors[FrameReader::kMaxVectors];
  for (int i = 0; i < kReads && peer.gone.ok() && !stopping_; ++i) {
    gate_.Enter(lock);
    if (!peer.gone.ok() || peer.reader.waits()) {  // not read, so the event is the connection's end
      gate_.Leave();
      Fail(lock, peer, Gone(peer.process, DescribeEnd(ECONNRESET)));
      return;
    }
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = peer.reader.Gather(vectors);
    size_t room = 0;
    for (size_t vector = 0; vector < message.msg_iovlen; ++vector) room += vectors[vector].iov_len;
    lock.unlock();
    const ssize_t bytes = recvmsg(peer.socket, &message, MSG_DONTWAIT);
    const int error = errno;
    lock.lock();
    gate_.Leave();
    if (bytes > 0) {
      CheckReader(lock, peer, peer.reader.Take(static_cast<size_t>(bytes)));
      RunCallbacks(lock);
      if (static_cast<size_t>(bytes) < room || peer.reader.waits()) return;
    } else if (bytes == 0 || (error != EAGAIN && error != EINTR)) {
      Fail(lock, peer, Gone(peer.process, DescribeEnd(bytes == 0 ? peer.write_error : error)));
      RunCallbacks(lock);
    } else {
      return;
    }
  }
}

void TcpTransport::FindSilent(Lock& lock) {
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    peer->unanswered = IsUnanswered(peer->socket) ? peer->unanswered + 1 : 0;
    if (peer->unanswered * kLook >= kSilence) Fail(lock, *peer, Gone(process, DescribeEnd(ETIMEDOUT)));
  }
}

// After each Take and Resume: whether, and how, the reader goes on.
void TcpTransport::CheckReader(Lock& lock, Peer& peer, const Status& status) {
  if (!status.ok()) {
    Fail(lock, peer, CutOff(peer.process, status));
  } else if (peer.reader.at_end()) {
    Fail(lock, peer, Status(Code::kInternal, "process " + std::to_string(peer.process) + " has left"));
  } else {
    SetInterest(peer);
  }
}

void TcpTransport::Write(Lock& lock, Peer& peer) {
  if (peer.writing || peer.blocked) return;  // who does, or the event, will also write what has been added
  iovec vectors[Outbox::kMaxVectors];
  std::vector<std::shared_ptr<Outgoing>> left;
  peer.writing = true;
  while (peer.gone.ok() && peer.write_error == 0 && !peer.blocked) {
    gate_.Enter(lock);
    if (!peer.gone.ok() || peer.outbox.empty()) {
      gate_.Leave();
      break;
    }
    msghdr message{};
    size_t asked;
    message.msg_iov = vectors;
    message.msg_iovlen = peer.outbox.Gather(vectors, &asked);
    lock.unlock();
    const ssize_t bytes = sendmsg(peer.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    const int error = errno;
    lock.lock();
    gate_.Leave();
    if (bytes >= 0) {
      peer.outbox.Advance(static_cast<size_t>(bytes), &left);
      for (std::shared_ptr<Outgoing>& message : left) Finish(std::move(message));
      left.clear();
      peer.blocked = static_cast<size_t>(bytes) < asked;
    } else if (error == EAGAIN) {
      peer.blocked = true;
    } else if (error != EINTR) {
      peer.write_error = error;
    }
  }
  peer.writing = false;
  if (peer.blocked) SetInterest(peer);
  if (!callbacks_.empty()) Wake();
}

void TcpTransport::Fail(Lock& lock, Peer& peer, const Status& why) {
  gate_.Close(lock);
  if (peer.gone.ok()) {
    peer.gone = why;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.socket, nullptr);
    shutdown(peer.socket, SHUT_RDWR);
    close(std::exchange(peer.socket, -1));
    inbox_.Fail(peer.process, why, peer.reader.TakeArrival());
    for (std::shared_ptr<Outgoing>& message : peer.outbox.Clear()) {
      message->status = why;
      Finish(std::move(message));
    }
    callbacks_.Push(std::nullopt,
                    [events = events_, process = peer.process, why] { events->OnPeerGone(process, why); });
    Wake();
  }
  gate_.Open();
}

// Sends what is queued and the goodbye, and waits until the other kernels have it: a connection that is closed before,
// with bytes that nobody has read, would take back what is on its way.
void TcpTransport::Depart(Lock& lock) {
  const auto deadline = std::chrono::steady_clock::now() + kDeparture;
  for (const auto& [process, peer] : peers_) {
    if (peer->gone.ok()) peer->outbox.PushCopy({FrameType::kGoodbye, 0, MessageId()}, {});
  }
  for (bool all_departed = false; !all_departed && std::chrono::steady_clock::now() < deadline;) {
    all_departed = true;
    for (const auto& [process, peer] : peers_) all_departed &= HasDeparted(lock, *peer);
    epoll_event event;
    if (!all_departed) epoll_wait(epoll_, &event, 1, /*milliseconds=*/1);  // no event says that bytes have arrived
  }
}

bool TcpTransport::HasDeparted(Lock& lock, Peer& peer) {
  if (!peer.gone.ok()) return true;
  std::byte ignored[16 << 10];
  ssize_t bytes;
  do bytes = recv(peer.socket, ignored, sizeof(ignored), MSG_DONTWAIT);
  while (bytes > 0);
  if (bytes == 0 || errno != EAGAIN) return true;
  peer.blocked = false;
  Write(lock, peer);
  int unacknowledged = 0;
  return peer.write_error != 0 ||
         (peer.outbox.empty() && ioctl(peer.socket, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0);
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

void TcpTransport::RunCallbacks(Lock& lock) {
  while (!callbacks_.empty() && !stopping_) {
    std::function<void()> run = callbacks_.Begin();
    lock.unlock();
    run();
    run = nullptr;  // what it holds may be released by calling us
    lock.lock();
    callbacks_.End();
  }
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

void TcpTransport::Wake() {
  if (has_woken_ || std::this_thread::get_id() == progress_) return;
  const uint64_t one = 1;
  has_woken_ = write(wake_, &one, sizeof(one)) == sizeof(one);
}

void TcpTransport::SetInterest(Peer& peer) {
  const uint32_t interest = (peer.reader.waits() ? 0u : EPOLLIN) | (peer.blocked ? EPOLLOUT : 0u);
  if (!peer.gone.ok() || interest == peer.interest) return;
  epoll_event event{};
  event.events = peer.interest = interest;
  event.data.u64 = peer.process;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.socket, &event);
}

}  // namespace jaxcomm
