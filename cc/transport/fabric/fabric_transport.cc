#include "cc/transport/fabric/fabric_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/own_descriptors.h"
#include "cc/base/text.h"
#include "cc/transport/fabric/peer.h"

namespace jaxcomm {
namespace {

// Keeps an endpoint and its memory for ever, because an endpoint with operations under way cannot be closed.
void Abandon(std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Arena> arena) {
  using Abandoned = std::vector<std::pair<std::unique_ptr<Endpoint>, std::shared_ptr<Arena>>>;
  static std::mutex* const mutex = std::make_unique<std::mutex>().release();
  static Abandoned* const abandoned = std::make_unique<Abandoned>().release();
  std::lock_guard<std::mutex> lock(*mutex);
  abandoned->emplace_back(std::move(endpoint), std::move(arena));
}

}  // namespace

// The windows have 16 frames of each size in small jobs. In larger jobs they shrink, down to 4 small frames and 2 large
// frames.
FabricTransport::Windows FabricTransport::WindowsOf(uint32_t processes) {
  const uint32_t others = std::max(processes, 2u) - 1;
  return {std::clamp(128 / others, 4u, 16u), std::clamp(64 / others, 2u, 16u)};
}

// Half of the slots are a reserve for frames of ended paths, and for acknowledgements.
Arena::Counts FabricTransport::SlotsOf(uint32_t processes) {
  const size_t others = std::max(processes, 2u) - 1;
  const Windows windows = WindowsOf(processes);
  return {2 * others * windows[kSmall], 2 * others * windows[kLarge]};
}

size_t FabricTransport::Operations(uint32_t processes) {
  const Arena::Counts slots = SlotsOf(processes);
  return 2 * (slots[kSmall] + slots[kLarge]);
}

Result<std::unique_ptr<FabricTransport>> FabricTransport::Create(uint32_t process, uint32_t processes, Events* events,
                                                                 std::unique_ptr<Endpoint> endpoint, std::string rail,
                                                                 std::chrono::nanoseconds silence) {
  if (processes > UINT16_MAX) return InvalidArgument("a rail over libfabric has at most 65535 processes");
  Result<std::shared_ptr<Arena>> arena = Arena::Create(SlotsOf(processes));
  if (!arena.ok()) return arena.status();
  std::unique_ptr<FabricTransport> transport(new FabricTransport(process, processes, events, std::move(endpoint),
                                                                 std::move(arena.value()), std::move(rail), silence));
  Status status = transport->Open();
  if (!status.ok()) return status;
  return transport;
}

FabricTransport::FabricTransport(uint32_t process, uint32_t processes, Events* events,
                                 std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Arena> arena, std::string rail,
                                 std::chrono::nanoseconds silence)
    : SocketTransport(process, events, std::move(rail), silence),
      windows_(WindowsOf(processes)),
      endpoint_(std::move(endpoint)),
      arena_(std::move(arena)) {}

Status FabricTransport::Open() {
  Status status = endpoint_->Register(arena_->memory(), arena_->bytes(), &described_);
  if (!status.ok()) return status;
  ReceiveAgain();
  status = Start("libfabric");
  if (status.ok()) status = Watch(kReleased, arena_->released_descriptor());
  if (status.ok() && endpoint_->descriptor() >= 0) status = Watch(kCompleted, endpoint_->descriptor());
  return status;
}

FabricTransport::~FabricTransport() {
  Stop();
  CloseEndpoint();
  for (const auto& [process, peer] : peers_) CloseOwn(peer->path.connection);
}

// Some providers crash if an endpoint is closed while messages are under way. An endpoint is therefore closed only if
// all paths have ended with a goodbye and libfabric has sent all frames.
void FabricTransport::CloseEndpoint() {
  if (!endpoint_) return;
  const bool is_idle = !arena_->has_sends() &&
                       std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second->left; });
  if (!is_idle) Abandon(std::move(endpoint_), arena_);
  endpoint_.reset();
}

void FabricTransport::Leave() {
  if (!Stop()) return;
  Lock lock(mutex_);
  for (const auto& [process, peer] : peers_) Fail(lock, *peer, Status());  // Fail sets the reason: this process left
  stopping_ = false;
  RunCallbacks(lock);
  CloseEndpoint();
}

Status FabricTransport::AddPeer(uint32_t process, const FabricPath& path, std::chrono::nanoseconds trial) {
  CloseInChildren(path.connection);
  Status status = PrepareSocket(path.connection);
  if (status.ok()) {
    Lock lock(mutex_);
    status = process == process_ ? InvalidArgument("it is this process") : Connect(lock, process, path);
    if (status.ok()) return trial > trial.zero() ? AwaitTrial(lock, *peers_[process], trial) : status;
  }
  CloseOwn(path.connection);
  return Status(status.code(), "process " + std::to_string(process) + " cannot be connected: " + status.message());
}

Status FabricTransport::Connect(Lock& lock, uint32_t process, const FabricPath& path) {
  if (Status status = AwaitEnd(lock, process); !status.ok()) return status;
  if (!endpoint_) return InvalidArgument("this process has left the job");
  const fi_addr_t address = endpoint_->Insert(path.address);
  if (address == FI_ADDR_UNSPEC) return InvalidArgument("libfabric refuses its address");
  if (Status status = Watch(process, path.connection); !status.ok()) return status;
  std::unique_ptr<Peer>& peer = peers_[process];
  if (!peer) peer = std::make_unique<Peer>(process);
  peer->Restart(path, address, ++paths_);
  const std::vector<std::byte> trial(kMaxMessage);
  peer->PushCopy({static_cast<FrameType>(kTrial), static_cast<uint32_t>(kMaxMessage), MessageId()},
                 {{trial.data(), kMaxMessage, 0}}, /*priority=*/0);
  send(path.connection, &kExpects, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  Wake();
  return Status();
}

Status FabricTransport::AwaitTrial(Lock& lock, Peer& peer, std::chrono::nanoseconds limit) {
  const auto end = Clock::now() + limit;
  while (peer.gone.ok() && peer.arrived_there == 0) {
    if (Clock::now() >= end) {
      End(peer, Status(Code::kInternal, "no frame has arrived over libfabric's " + endpoint_->domain().provider));
      break;
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  return peer.gone;
}

void FabricTransport::Cancel(const CallId& call) {
  Lock lock(mutex_);
  inbox_.Cancel(call);
  for (const auto& [process, peer] : peers_) {
    peer->Cancel(call);
    if (peer->gone.ok() && peer->waits()) resumes_ = true;
  }
  if (resumes_) Wake();
}

// Needs no Gate, unlike TcpTransport::Fence: bytes of messages are copied only under the lock.
void FabricTransport::Fence(uint32_t process, const Status& why) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  if (peer.gone.ok()) {
    ResetAtClose(peer.path.connection);
    End(peer, why);
  }
  inbox_.Drop(process);
  if (!callbacks_.empty()) Wake();  // AddPeer waits for the callbacks of unsent messages
}

// Frames are acknowledged by the process, not by its host, and a process may be stopped. So only two things count as
// unanswered: frames that the process should have received, and questions over the connection that its host has not yet
// acknowledged.
SendProgress FabricTransport::ProgressTo(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end() || !found->second->gone.ok()) return {};
  Peer& peer = *found->second;
  Ask(peer);
  const uint32_t frames = peer.unanswered(),
                 questions = peer.is_asked ? ProgressOf(peer.path.connection).unanswered : 0;
  return {peer.confirmed, frames + questions, /*repeats=*/true};
}

// Lets views keep half of the window, because a process cannot send while views hold all slots of its window.
bool FabricTransport::MayKeep(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return true;
  const Peer::Lane& lane = found->second->lanes[kLarge];
  return lane.arrived - lane.freed <= windows_[kLarge] / 2;
}

int64_t FabricTransport::forged(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  return found == peers_.end() ? 0 : found->second->forged;
}

SocketPeer* FabricTransport::PeerOf(uint32_t process) {
  const auto found = peers_.find(process);
  return found == peers_.end() ? nullptr : found->second.get();
}

std::vector<SocketPeer*> FabricTransport::Peers() {
  std::vector<SocketPeer*> peers;
  for (const auto& [process, peer] : peers_) peers.push_back(peer.get());
  return peers;
}

std::optional<std::string> FabricTransport::WhySilent(SocketPeer& its, std::chrono::nanoseconds since) {
  Peer& peer = static_cast<Peer&>(its);
  if (std::optional<std::string> why = peer.watch.Look(peer.path.connection, since, silence_)) return why;
  const bool progresses = std::exchange(peer.looked_arrived, peer.arrived_there) != peer.arrived_there;
  Ask(peer);
  if (progresses || peer.unanswered() == 0) return std::nullopt;
  return "for " + FormatSeconds(silence_) + " no frame has arrived over libfabric's " + endpoint_->domain().provider +
         ", while the process answers over TCP";
}

}  // namespace jaxcomm
