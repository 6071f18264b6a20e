// The process's connections to the others of its job.
//
//   Status status = TheJob().Open(/*process=*/0, /*processes=*/4);
//   ... publish TheJob().shm(), connect ...
//   status = TheJob().OpenRails(RailKind::kTcp, {"eth0"});
//   status = TheJob().AddTcp(1, /*rail=*/0, socket);   // or AddUdp, or AddShm, for each other process
//   status = TheJob().Start(hosts, host_names);             // from now on calls between processes may run
//   TheJob().Close();                      // before the process ends: what is on its way gets out
//   TheJob().Reset();                      // once no call uses it: another job, or the same one anew, may be opened
//
// They are connected once in a generation. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/message_site.h"
#include "cc/transport/local/local.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/router.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/tcp/tcp_transport.h"
#include "cc/transport/transport.h"
#include "cc/transport/udp/udp_transport.h"

namespace jaxcomm {

enum class RailKind { kTcp, kUdp };

class Job {
 public:
  explicit Job(Transport::Events* events) : events_(events) {}

  Status Open(uint32_t process, uint32_t processes);
  // The shared-memory transport, made when first asked for.
  Result<ShmTransport*> Shm();
  // By their names; once.
  Status OpenRails(RailKind kind, const std::vector<std::string>& names);
  // How messages for a process are cut over the rails that lead to it, before they are added; where there are several.
  Status SetRails(uint32_t process, const std::vector<RailTable::Range>& ranges, const std::vector<uint32_t>& connected,
                  const std::vector<uint32_t>& down);
  // They own the descriptors.
  Status AddShm(uint32_t process, uint64_t nonce, int fd);
  Status AddTcp(uint32_t process, uint32_t rail, int socket);
  Status AddUdp(uint32_t process, uint32_t rail, const UdpPath& path);
  // With the number of each process's host. An error: a process has not been added.
  Status Start(std::vector<uint32_t> hosts, const std::vector<std::string>& host_names);
  // After it: what the rails have lost, and a new connection or path for one of them, which it owns. An error: not now.
  std::vector<Rails::Lost> lost_rails() const;
  Status RestoreTcp(const Rails::Lost& lost, int socket);
  Status RestoreUdp(const Rails::Lost& lost, const UdpPath& path);
  // All rails to other processes, as JSON; none where there is one to each.
  std::string RailsJson() const;

  // Sends what is queued, for some seconds at most, and says goodbye. Calls in flight fail, and so do later ones.
  void Close();
  // After Close: releases all connections and their memory, of which nothing may be used any more.
  void Reset();

  // Null before Start.
  Transport* transport() const { return router_.get(); }
  bool started() const;
  // After Start: whether there is a processor for each process of this host.
  bool has_processor_each() const;
  uint32_t process() const;
  // A device of a process with its host, after Start.
  MessageGroup::Rank Rank(uint32_t process, uint32_t device) const;
  // The number of a rail beside others; none: the job has none of this name, or no other.
  std::optional<uint32_t> FindRail(const std::string& name) const;
  // The number of times that it has been opened: an executable belongs to the generation that it was loaded in.
  uint64_t generation() const { return generation_; }
  // An error of `who` where it was loaded in another generation.
  Status CheckGeneration(uint64_t generation, const std::string& who) const;

 private:
  enum Route : uint32_t { kLocal, kShm, kRails, kNone };

  Status Add(uint32_t process, Route route);
  Status AddTo(uint32_t process, uint32_t rail, size_t rails);
  Status Restore(const Rails::Lost& lost, size_t rails, const std::function<Status()>& connect,
                 const std::vector<int>& descriptors);

  Transport::Events* const events_;
  std::atomic<uint64_t> generation_{0};
  mutable std::mutex mutex_;
  uint32_t process_ = 0;
  std::vector<uint32_t> routes_, hosts_;                        // by process
  std::vector<std::shared_ptr<const std::string>> host_names_;  // by process
  std::unique_ptr<Transport> local_;
  std::unique_ptr<ShmTransport> shm_;
  std::vector<std::string> rail_names_;
  std::unique_ptr<Rails> rails_;  // where there are several
  // By rail, of one kind.
  std::vector<std::unique_ptr<TcpTransport>> tcp_;
  std::vector<std::unique_ptr<UdpTransport>> udp_;
  std::unique_ptr<Router> router_;
};

// Lives until the process ends.
Job& TheJob();

}  // namespace jaxcomm
