// Connects the processes of one host. A sender copies each message once, into memory that the receivers read.
//
//   Result<std::unique_ptr<ShmTransport>> transport = ShmTransport::Create(process, processes, &events, 64 << 20);
//   ... publish its fd() and nonce(), open the other processes' files through /proc/<pid>/fd/<fd> ...
//   Status status = transport.value()->AddPeer(other, others_nonce, fd);   // for each other process, in any order
//
// A view points into the sender's memory. If this process holds views of a sender's messages, only later messages from
// that sender to this process may be delayed. When a process ends for any reason, the other processes notice within a
// second. All receivers of one Send must belong to the same call.
//
// Leave sends the waiting messages and then a goodbye. This takes some seconds at most. After Leave all other processes
// count as gone. The destructor sends a goodbye at once. No callback runs after the destructor, but views may outlive
// the transport.
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
#include "cc/transport/shm/transfer_buffers.h"
#include "cc/transport/spans.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class ShmTransport final : public Transport {
 public:
  // Returns the size of a process's arena, in bytes. The arena consists of the slots for messages in flight. The arena
  // is small enough for the caches, but large enough that a sender finds a free slot, and that a receiver can keep one
  // slot while other messages arrive.
  static constexpr int64_t ArenaBytes(uint32_t processes) {
    return std::max(int64_t{4} << 20, 2 * processes * kMaxMessage);
  }

  // `events` must outlive the transport. The arena is divided evenly among the receivers.
  static Result<std::unique_ptr<ShmTransport>> Create(uint32_t process, uint32_t processes, Events* events,
                                                      int64_t arena_bytes);
  ~ShmTransport() override;

  int fd() const { return memory_->fd(); }
  uint64_t nonce() const { return memory_->header().nonce; }

  // Takes ownership of `fd`, the memory file of the other process, opened for reading and writing. Must be called once
  // for each process, before any other function is called for that process.
  Status AddPeer(uint32_t process, uint64_t nonce, int fd);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
  bool MayKeep(uint32_t process) override;
  void Cancel(const CallId& call) override;
  std::unique_ptr<PendingExchange> Join(Exchange mine) override;
  Transfers* transfers(uint32_t process) override;
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
  using Key = std::pair<uint32_t, MessageId>;  // sending process, message
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
    bool may_stay;       // false: `bytes` are valid only until Arrive returns
    int64_t charge = 0;  // number of bytes counted against kMaxEarlyBytes
  };
  struct Outgoing {
    std::vector<Receiver> to;
    std::vector<ConstSpan> spans;
    Extent extent;
    Sent done;
    Status status;
  };
  // The messages of a call.
  struct Call {
    std::map<Key, Posted> posted;
    std::map<Key, Arrived> early;
    int copies = 0;  // number of copies in progress, into or from spans of the call
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

  // Running the progress thread, and ending peers and calls (shm_transport.cc).
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

  std::mutex serving_;  // held by the thread that reads arrivals: the progress thread or a helper
  std::mutex mutex_;
  std::condition_variable copied_;
  int64_t expected_ = 0;  // number of expected calls; may briefly be negative, as EndExpecting may run before Expect
  std::vector<std::unique_ptr<Peer>> peers_;
  shm::Exchanges exchanges_;
  shm::TransferBuffers transfer_buffers_;
  std::unordered_map<CallId, Call, HashCallId> calls_;
  CancelledCalls cancelled_;
  shm::MessageSlots slots_;
  std::map<std::vector<uint32_t>, std::deque<Outgoing>> waiting_;  // messages that wait for a slot, by set of receivers
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace jaxcomm
