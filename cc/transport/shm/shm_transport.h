// The processes of one host: each copies its messages once, into memory that the others read.
//
//   Result<std::unique_ptr<ShmTransport>> transport = ShmTransport::Create(process, processes, &events, 64 << 20);
//   ... publish its fd() and nonce(), open the others' files through /proc/<pid>/fd/<fd> ...
//   Status status = transport.value()->AddPeer(other, others_nonce, fd);   // for each other process, in any order
//
// A view that a receiver accepts is the sender's memory itself. Held views of one process stop only
// the messages from it to this process. A process that ends, however, is noticed within a second. All receivers of one
// Send have the same call. Leave sends waiting messages, for some seconds at most, and a goodbye; then all other
// processes are gone. The destructor sends a goodbye at once; no callback runs after it, views may live on.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/yielding.h"
#include "cc/transport/cancelled_calls.h"
#include "cc/transport/shm/doorbell.h"
#include "cc/transport/shm/exchanges.h"
#include "cc/transport/shm/life_lock.h"
#include "cc/transport/shm/memory_file.h"
#include "cc/transport/shm/message_slots.h"
#include "cc/transport/spans.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class ShmTransport final : public Transport {
 public:
  // For the messages of each process of a job: small enough for the caches, large enough that no sender that could copy
  // waits for a slot, and that a receiver may keep one slot while others come.
  static constexpr int64_t ArenaBytes(uint32_t processes) {
    return std::max(int64_t{4} << 20, 2 * processes * kMaxMessage);
  }

  // `events` outlives the transport. The arena, the memory of messages at one time, is divided evenly among the
  // receivers.
  static Result<std::unique_ptr<ShmTransport>> Create(uint32_t process, uint32_t processes, Events* events,
                                                      int64_t arena_bytes);
  ~ShmTransport() override;

  int fd() const { return memory_->fd(); }
  uint64_t nonce() const { return memory_->header().nonce; }

  // Owns `fd`, the other's memory file opened for reading and writing, from here on. Once for each process, before it
  // is named to any other function.
  Status AddPeer(uint32_t process, uint64_t nonce, int fd);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
  bool MayKeep(uint32_t process) override;
  void Cancel(const CallId& call) override;
  bool TryExchange(const Exchange& mine, std::chrono::nanoseconds limit, bool yields,
                   const TakeExchanged& take) override;
  void Expect() override;
  void EndExpecting() override;
  void Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) override;

  void Leave();

 private:
  struct OnlyCreate {};

 public:
  ShmTransport(OnlyCreate, Events* events, std::shared_ptr<shm::MemoryFile> memory,
               std::unique_ptr<shm::LifeLock> life_lock);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Key = std::pair<uint32_t, MessageId>;  // the sender
  using View = std::shared_ptr<const std::byte>;
  struct Peer;
  struct Posted {
    std::vector<Span> spans;
    bool accepts_view;
    Received done;
  };
  struct Arrived {
    Extent extent;
    View bytes;
    bool may_stay;       // otherwise `bytes` ends with the function
    int64_t charge = 0;  // its size as an early message
  };
  struct Outgoing {
    std::vector<Receiver> to;
    std::vector<ConstSpan> spans;
    Extent extent;
    Sent done;
    Status status;
  };
  // The messages of a call in flight.
  struct Call {
    std::map<Key, Posted> posted;
    std::map<Key, Arrived> early;
    int copies = 0;  // being made, into or from its spans
  };

  // Sending (send.cc).
  bool DropGone(Outgoing* outgoing);
  void SendInline(const Outgoing& outgoing);
  std::optional<shm::Place> ReservePlace(const std::vector<uint32_t>& processes, int64_t bytes);
  void CollectReleases(Peer& peer);
  void CopyAndPublish(Outgoing outgoing, shm::Place place, Lock& lock);
  void FlushSoftly();
  void Write(Peer& peer, const shm::Record& record, const std::byte* bytes);
  bool SendWaiting();
  bool SendWaitingOnce(Lock& lock);

  // Receiving (receive.cc).
  void Read(Peer& peer, bool to_its_end);
  void Arrive(Peer& peer, const shm::Record& record, const std::byte* bytes);
  void KeepEarly(Peer& peer, Call& call, const MessageId& id, Arrived arrived);
  Posted TakePosted(Peer& peer, Call& call, std::map<Key, Posted>::iterator message);
  void Deliver(Peer& peer, Call& call, const MessageId& id, Posted posted, Arrived arrived, Lock& lock);

  // The progress thread and the ends of peers (shm_transport.cc).
  void Work();
  void Stop();
  void SayGoodbye(Peer& peer);
  void ServeAll(bool look);
  void Serve(Peer& peer, bool look);
  bool RestAsExpected(shm::Doorbell* state);
  Peer* Find(uint32_t process);
  Peer* At(uint32_t process);
  void Break(Peer& peer, const std::string& what);
  void EndPeer(Peer& peer, const Status& why, bool left = false);
  void ForgetIfIdle(const CallId& id);
  bool EndCopy(const CallId& id);

  Events* const events_;
  const uint32_t process_;
  const std::shared_ptr<shm::MemoryFile> memory_;
  const std::unique_ptr<shm::LifeLock> life_lock_;

  std::mutex serving_;  // held by the thread that reads arrivals, the progress thread or a helper
  Yielding yielding_;   // of the helper
  std::mutex mutex_;
  std::condition_variable copied_;
  int64_t expected_ = 0;  // calls; may briefly be negative, as one may end before it is expected
  std::vector<std::unique_ptr<Peer>> peers_;
  shm::Exchanges exchanges_;
  std::unordered_map<CallId, Call, HashCallId> calls_;
  CancelledCalls cancelled_;
  shm::MessageSlots slots_;
  std::map<std::vector<uint32_t>, std::deque<Outgoing>> waiting_;  // for slots, by receivers
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace jaxcomm
