// The connections of this process to the other processes of its job.
//
//   Status status = TheJob().Open(/*process=*/0, /*processes=*/4, /*same_job=*/false);
//   ... publish the file of TheJob().Shm(), connect ...
//   status = TheJob().OpenRails({{"eth0", RailKind::kTcp}});
//   status = TheJob().AddTcp(1, /*rail=*/0, {socket});   // AddTcp, AddUdp, AddFabric or AddShm for each other process
//   status = TheJob().Start(hosts, host_names);        // from now on calls between processes may run
//   TheJob().Close();                      // before the process ends: sends all queued messages
//   TheJob().Reset();                      // when no call uses the job any more; then Open may begin a generation
//
// Each Open begins a new generation, of the same job or of another job. In each generation the processes are connected
// once. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/sites/message_site.h"
#include "cc/transport/fabric/endpoint.h"
#include "cc/transport/fabric/fabric_transport.h"
#include "cc/transport/local/local.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/router.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/tcp/tcp_transport.h"
#include "cc/transport/transport.h"
#include "cc/transport/udp/udp_transport.h"

namespace jaxcomm {

enum class RailKind { kTcp, kUdp, kFabric };

struct NamedRail {
  std::string name;
  RailKind kind;
};

class Job {
 public:
  static constexpr uint32_t kAbsent = UINT32_MAX;

  explicit Job(Transport::Events* events) : events_(events) {}

  // `same_job`: whether the new generation belongs to the same job as the previous generation.
  Status Open(uint32_t process, uint32_t processes, bool same_job);
  // Returns the shared-memory transport. The first call creates this transport.
  Result<ShmTransport*> Shm();
  // Opens an endpoint for the fabric rail of this name. Returns the chosen domain and the endpoint's address, which the
  // other processes need for AddFabric.
  Result<Domain> OpenFabric(const std::string& rail, const DomainName& name);
  // Opens the rails. A fabric rail needs an endpoint, which OpenFabric opens. Called once per generation.
  Status OpenRails(const std::vector<NamedRail>& rails);
  // Sets the rails that lead to a process, and the rails' shares. Called before these rails are added. Fails if the job
  // has only one rail.
  Status SetRails(uint32_t process, const std::vector<RailTable::Range>& ranges, const std::vector<uint32_t>& connected,
                  const std::vector<uint32_t>& down);
  // Fails if this machine lacks the library that encrypts messages.
  static Status CheckEncryption();
  // The four Add functions take ownership of the descriptors.
  Status AddShm(uint32_t process, uint64_t nonce, int fd);
  Status AddTcp(uint32_t process, uint32_t rail, const TcpPath& path);
  Status AddUdp(uint32_t process, uint32_t rail, const UdpPath& path);
  Status AddFabric(uint32_t process, uint32_t rail, const FabricPath& path);
  // `hosts[p]` is the number of process p's host, or kAbsent if the process is not in this generation. Fails if a
  // process with a host has not been added.
  Status Start(std::vector<uint32_t> hosts, const std::vector<std::string>& host_names);
  // After Start: changes the shares of the rails to a process, for later messages. Fails if the job has only one rail.
  Status SetShares(uint32_t process, const std::vector<RailTable::Range>& ranges);
  // Returns the lost rails that may be restored; none before Start.
  std::vector<Rails::Lost> lost_rails() const;
  // The three Restore functions take ownership of the connection, and fail if the rail cannot be restored.
  Status RestoreTcp(const Rails::Lost& lost, const TcpPath& path);
  Status RestoreUdp(const Rails::Lost& lost, const UdpPath& path);
  Status RestoreFabric(const Rails::Lost& lost, const FabricPath& path);
  // Returns all rails to other processes, as a JSON list. The list is empty if the job has only one rail.
  std::string RailsJson() const;

  // Sends the queued messages, for a few seconds at most, and notifies the peers. Calls in flight and later calls fail.
  void Close();
  // After Close: releases all connections and their memory. No call may still use the connections.
  void Reset();

  // Returns null before Start.
  Transport* transport() const { return router_.get(); }
  bool started() const;
  uint32_t process() const;
  // After Start: returns a device of a process as a rank, with the process's host.
  MessageRank Rank(uint32_t process, uint32_t device) const;
  // Returns the number of the rail of this name; nullopt if the job has no such rail, or has only one rail.
  std::optional<uint32_t> FindRail(const std::string& name) const;
  // After Start: returns the processes that are not in this generation.
  std::vector<uint32_t> absent() const;
  // The number of generations so far. Call sites and connections belong to one generation.
  uint64_t generation() const { return generation_; }
  // The number of jobs so far. An executable belongs to the job in which it was loaded.
  uint64_t number() const { return number_; }
  // Fails if `number` is not the current job's number. `who` names the thing that was loaded in job `number`; the
  // error's text begins with `who`.
  Status CheckNumber(uint64_t number, const std::string& who) const;

 private:
  enum Route : uint32_t { kLocal, kShm, kRails, kNone };

  using Rail =
      std::variant<std::unique_ptr<TcpTransport>, std::unique_ptr<UdpTransport>, std::unique_ptr<FabricTransport>>;

  Status Add(uint32_t process, Route route);
  Result<Rail> MakeRail(const NamedRail& rail, Transport::Events* events);
  // AddTo and RestoreTo connect a rail of the kind `Kind`. They take ownership of the descriptors of `path`.
  template <typename Kind, typename Path>
  Status AddTo(uint32_t process, uint32_t rail, const Path& path, const std::vector<int>& descriptors);
  template <typename Kind, typename Path>
  Status RestoreTo(const Rails::Lost& lost, const Path& path, const std::vector<int>& descriptors);
  // Returns the transport of a rail; nullptr if the rail does not exist or is of another kind.
  template <typename Kind>
  Kind* FindKind(uint32_t rail);

  Transport::Events* const events_;
  std::atomic<uint64_t> generation_{0}, number_{0};
  mutable std::mutex mutex_;
  uint32_t process_ = 0;
  std::vector<uint32_t> routes_, hosts_;                        // by process
  std::vector<std::shared_ptr<const std::string>> host_names_;  // by process
  std::unique_ptr<Transport> local_;
  std::unique_ptr<ShmTransport> shm_;
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints_;  // by name: endpoints of fabric rails, until OpenRails
  std::vector<std::string> rail_names_;
  std::unique_ptr<Rails> rails_;  // null if the job has only one rail
  std::vector<Rail> own_rails_;   // by rail
  std::unique_ptr<Router> router_;
};

// Never destroyed; runtime.h has the reason.
Job& TheJob();

}  // namespace jaxcomm
