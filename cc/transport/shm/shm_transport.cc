#include "cc/transport/shm/shm_transport.h"

#include <optional>

#include "cc/base/thread.h"
#include "cc/transport/shm/doorbell.h"
#include "cc/transport/shm/peer.h"

namespace jaxcomm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLifeInterval(200);  // time between two checks that a process is alive
constexpr std::chrono::seconds kDeparture(2);

}  // namespace

Result<std::unique_ptr<ShmTransport>> ShmTransport::Create(uint32_t process, uint32_t processes, Events* events,
                                                           int64_t arena_bytes) {
  Result<std::shared_ptr<shm::MemoryFile>> memory = shm::MemoryFile::Create(process, processes, arena_bytes);
  if (!memory.ok()) return memory.status();
  Result<std::unique_ptr<shm::LifeLock>> life_lock = shm::LifeLock::Take(memory.value()->fd());
  if (!life_lock.ok()) return life_lock.status();
  auto transport =
      std::make_unique<ShmTransport>(OnlyCreate(), events, std::move(memory.value()), std::move(life_lock.value()));
  std::optional<std::thread> thread = StartThread([self = transport.get()] { self->Work(); });
  if (!thread) {
    return InvalidArgument(
        "no thread can be started for shared memory.\n  Cure: raise ulimit -u, or start fewer threads.");
  }
  transport->thread_ = std::move(*thread);
  return transport;
}

ShmTransport::ShmTransport(OnlyCreate, Events* events, std::shared_ptr<shm::MemoryFile> memory,
                           std::unique_ptr<shm::LifeLock> life_lock)
    : events_(events),
      process_(memory->header().process),
      memory_(std::move(memory)),
      life_lock_(std::move(life_lock)),
      peers_(memory_->header().processes),
      exchanges_(memory_),
      slots_(process_, memory_->header().processes, memory_->header().slots) {}

ShmTransport::~ShmTransport() {
  Stop();
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer && !peer->ended()) SayGoodbye(*peer);
  }
}

void ShmTransport::Leave() {
  if (!thread_.joinable()) return;
  Stop();
  // Waits for a thread in Help, because a rank may have called Help just before Leave.
  const std::lock_guard<std::mutex> serving(serving_);
  const Clock::time_point deadline = Clock::now() + kDeparture;
  while (SendWaiting() && Clock::now() < deadline) {
    Flush();
    shm::Listen(memory_->doorbell());
    if (shm::Rest(memory_->doorbell(), shm::kAsleep)) {
      shm::Sleep(memory_->doorbell(), shm::kAsleep, std::chrono::milliseconds(1));
    }
  }
  Flush();
  for (uint32_t process = 0; process < peers_.size(); ++process) {
    Peer* const peer = Find(process);
    if (peer == nullptr || peer->ended()) continue;
    SayGoodbye(*peer);
    EndPeer(*peer, Status(Code::kInternal, "this process has left the job"));
  }
  SendWaiting();  // reports an error for each unsent message
}

void ShmTransport::Stop() {
  stopping_ = true;
  shm::Ring(memory_->doorbell());
  if (thread_.joinable()) thread_.join();
}

void ShmTransport::SayGoodbye(Peer& peer) {
  peer.to.closing.store(static_cast<uint32_t>(shm::Closing::kLeft));
  shm::Ring(peer.memory->doorbell());
}

Status ShmTransport::AddPeer(uint32_t process, uint64_t nonce, int fd) {
  Result<std::shared_ptr<shm::MemoryFile>> memory = shm::MemoryFile::Open(fd, *memory_, process, nonce);
  if (!memory.ok()) return memory.status();
  if (process == process_ || process >= peers_.size()) {
    return InvalidArgument("process " + std::to_string(process) + " is not another process of this job.");
  }
  {
    Lock lock(mutex_);
    if (peers_[process]) return InvalidArgument("process " + std::to_string(process) + " has been added before.");
    peers_[process] = std::make_unique<Peer>(*this, process, std::move(memory.value()));
    Peer& peer = *peers_[process];
    peer.to.reads = peer.can_read ? 1 : 0;
  }
  shm::Ring(memory_->doorbell());  // the peer may already have sent something
  return Status();
}

void ShmTransport::Cancel(const CallId& id) {
  Call ended;  // declared before `lock`, so that its callbacks are destroyed without the lock
  std::vector<Outgoing> unsent;
  Lock lock(mutex_);
  cancelled_.Add(id);
  for (auto& [processes, queue] : waiting_) {
    std::deque<Outgoing> others;
    for (Outgoing& outgoing : queue) {
      if (outgoing.to.front().id.call == id) {
        unsent.push_back(std::move(outgoing));
      } else {
        others.push_back(std::move(outgoing));
      }
    }
    queue.swap(others);
  }
  const auto find = [&] { return calls_.find(id); };
  copied_.wait(lock, [&] { return find() == calls_.end() || find()->second.copies == 0; });
  const auto call = find();
  if (call != calls_.end()) {
    ended = std::move(call->second);
    calls_.erase(call);
  }
  for (const auto& [message, posted] : ended.posted) --peers_[message.first]->posted;
  for (const auto& [message, arrived] : ended.early) peers_[message.first]->early_bytes -= arrived.charge;
  lock.unlock();
  // Messages that waited behind messages of the call may now be sent or read.
  if (!unsent.empty() || !ended.early.empty()) shm::Ring(memory_->doorbell());
}

std::unique_ptr<PendingExchange> ShmTransport::Join(Exchange mine) {
  std::vector<shm::Exchanges::Member> members;
  members.reserve(mine.processes.size());
  {
    Lock lock(mutex_);
    for (size_t rank = 0; rank < mine.processes.size(); ++rank) {
      if (rank == mine.rank) {
        members.push_back({memory_.get()});
        continue;
      }
      Peer* const peer = At(mine.processes[rank]);
      if (peer == nullptr) return nullptr;
      const auto lives = [this, peer] {
        Lock lock(mutex_);
        return !peer->ended();
      };
      members.push_back({peer->memory.get(), peer->can_read ? &peer->bytes : nullptr, peer->from.reads != 0, lives});
    }
  }
  return exchanges_.Join(std::move(mine), std::move(members));
}

Transfers* ShmTransport::transfers(uint32_t process) {
  Peer* const peer = Find(process);
  return peer == nullptr ? nullptr : &peer->transfers;
}

void ShmTransport::Work() {
  Clock::time_point next_look = Clock::now();
  while (!stopping_) {
    shm::Doorbell state;
    bool rests;
    {
      const std::lock_guard<std::mutex> serving(serving_);
      shm::Listen(memory_->doorbell());
      const bool look = Clock::now() >= next_look;
      if (look) next_look = Clock::now() + kLifeInterval;
      ServeAll(look);
      Flush();
      rests = RestAsExpected(&state);
    }
    if (rests && !stopping_) shm::Sleep(memory_->doorbell(), state, kLifeInterval);
  }
}

void ShmTransport::Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) {
  const std::unique_lock<std::mutex> serving(serving_, std::try_to_lock);
  if (!serving.owns_lock()) return Flush();
  const Clock::time_point end = Clock::now() + limit;
  std::atomic<uint32_t>& doorbell = memory_->doorbell();
  for (;;) {
    shm::Listen(doorbell);
    ServeAll(/*look=*/false);
    const bool is_over = over();
    FlushSoftly();
    const auto left = end - Clock::now();
    if (is_over || left <= left.zero()) {
      if (!is_over) Flush();
      shm::Doorbell state;
      if (RestAsExpected(&state)) return;
      if (left > left.zero()) continue;
      // The doorbell has been rung again, and the limit has passed, so the progress thread must receive the messages.
      return shm::WakeSleeper(doorbell, shm::kAsleep);
    }
    if (yields) YieldUntil([&] { return doorbell.load() != shm::kAwake; }, memory_->writable().rests_until);
    if (shm::Rest(doorbell, shm::kHelping)) shm::Sleep(doorbell, shm::kHelping, left);
  }
}

void ShmTransport::ServeAll(bool look) {
  for (uint32_t process = 0; process < peers_.size(); ++process) {
    if (Peer* const peer = Find(process)) Serve(*peer, look);
  }
  SendWaiting();
}

bool ShmTransport::RestAsExpected(shm::Doorbell* state) {
  Lock lock(mutex_);
  *state = expected_ > 0 ? shm::kAsleep : shm::kDozing;
  return shm::Rest(memory_->doorbell(), *state);
}

void ShmTransport::Expect() {
  Lock lock(mutex_);
  uint32_t state = shm::kDozing;
  if (++expected_ != 1 || memory_->doorbell().compare_exchange_strong(state, shm::kAsleep)) return;
  if (state == shm::kRung) shm::Ring(memory_->doorbell());  // the earlier ring may have deferred its wake-up
}

void ShmTransport::EndExpecting() {
  Lock lock(mutex_);
  uint32_t state = shm::kAsleep;
  if (--expected_ == 0) memory_->doorbell().compare_exchange_strong(state, shm::kDozing);
}

ShmTransport::Peer* ShmTransport::Find(uint32_t process) {
  Lock lock(mutex_);
  return At(process);
}

ShmTransport::Peer* ShmTransport::At(uint32_t process) {
  return process < peers_.size() ? peers_[process].get() : nullptr;
}

void ShmTransport::Serve(Peer& peer, bool look) {
  if (peer.ended()) return;  // needs no lock: only the thread that holds serving_ ends a peer
  // A peer first writes its messages, then sets `closing`, and releases its life lock last. This function checks the
  // three in the reverse order, so that it misses no message.
  const bool lives = !look || shm::IsLocked(peer.memory->fd());
  const uint32_t closing = peer.from.closing.load();
  Read(peer, /*to_its_end=*/!lives || closing != static_cast<uint32_t>(shm::Closing::kOpen));
  const std::string name = "process " + std::to_string(peer.process);
  std::string broken;
  {
    Lock lock(mutex_);
    broken = peer.broken;
  }
  if (!broken.empty()) {
    peer.to.closing.store(static_cast<uint32_t>(shm::Closing::kCutOff));
    shm::Ring(peer.memory->doorbell());
    EndPeer(peer,
            Status(Code::kInternal, name + " has been cut off: " + broken +
                                        ".\n  Cure: run the same jaxcomm and the same program in all processes."));
  } else if (closing == static_cast<uint32_t>(shm::Closing::kLeft)) {
    EndPeer(peer, Status(Code::kInternal, name + " has left"), /*left=*/true);
  } else if (closing != static_cast<uint32_t>(shm::Closing::kOpen)) {
    EndPeer(peer, Status(Code::kInternal, name + " has cut this process off; its own error says why"));
  } else if (!lives) {
    EndPeer(peer, Status(Code::kInternal, name + " has died: it was killed, or crashed"));
  }
}

void ShmTransport::Break(Peer& peer, const std::string& what) {
  if (!peer.usable()) return;
  peer.broken = what;
  shm::Ring(memory_->doorbell());  // the thread that holds serving_ ends the peer
}

void ShmTransport::EndPeer(Peer& peer, const Status& why, bool left) {
  std::vector<MessageId> expected;
  {
    Lock lock(mutex_);
    peer.end = why;
    peer.queue.clear();
    slots_.Forget(peer.process);
    for (const auto& [id, call] : calls_) {
      for (const auto& [message, posted] : call.posted) {
        if (message.first == peer.process) expected.push_back(message.second);
      }
    }
  }
  left ? events_->OnPeerLeft(peer.process, why) : events_->OnPeerGone(peer.process, why);
  for (const MessageId& id : expected) {
    Lock lock(mutex_);
    const auto call = calls_.find(id.call);
    if (call == calls_.end()) continue;
    const auto message = call->second.posted.find({peer.process, id});
    if (message == call->second.posted.end()) continue;
    const Posted posted = TakePosted(peer, call->second, message);
    ForgetIfIdle(id.call);
    lock.unlock();
    posted.done(why, nullptr);
  }
}

void ShmTransport::ForgetIfIdle(const CallId& id) {
  const auto call = calls_.find(id);
  if (call == calls_.end()) return;
  if (call->second.posted.empty() && call->second.early.empty() && call->second.copies == 0) calls_.erase(call);
}

// Must be called after each copy. Returns whether the call was cancelled during the copy.
bool ShmTransport::EndCopy(const CallId& id) {
  Call& call = calls_.find(id)->second;  // Cancel keeps the call while copies are in progress
  --call.copies;
  if (cancelled_.Contains(id)) {
    copied_.notify_all();
    return true;
  }
  ForgetIfIdle(id);
  return false;
}

}  // namespace jaxcomm
