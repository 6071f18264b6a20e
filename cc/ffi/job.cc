#include "cc/ffi/job.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/base/json.h"
#include "cc/ffi/runtime.h"
#include "cc/transport/crypto/libcrypto.h"

namespace jaxcomm {
namespace {

constexpr std::chrono::milliseconds kTrialLimit(500);  // time limit of the trial of a restored fabric rail

void CloseAll(const std::vector<int>& descriptors) {
  for (const int descriptor : descriptors) close(descriptor);
}

template <typename Rail>
RailTransport* TransportOf(const Rail& rail) {
  return std::visit([](const auto& transport) -> RailTransport* { return transport.get(); }, rail);
}

}  // namespace

Status Job::Open(uint32_t process, uint32_t processes, bool same_job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!routes_.empty()) {
    return InvalidArgument("this process is already connected to the other processes of its job.");
  }
  if (process >= processes) {
    return InvalidArgument("process " + std::to_string(process) + " is not in a job of " + std::to_string(processes));
  }
  local_ = std::make_unique<LocalTransport>();
  process_ = process;
  routes_.assign(processes, kNone);
  routes_[process] = kLocal;
  ++generation_;
  if (!same_job || number_ == 0) ++number_;
  return Status();
}

Result<Domain> Job::OpenFabric(const std::string& rail, const DomainName& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto processes = static_cast<uint32_t>(routes_.size());
  Result<std::unique_ptr<Endpoint>> made = Endpoint::Open(name, FabricTransport::Operations(processes));
  if (!made.ok()) return made.status();
  std::unique_ptr<Endpoint>& endpoint = endpoints_[rail];
  endpoint = std::move(made.value());
  return endpoint->domain();
}

Status Job::OpenRails(const std::vector<NamedRail>& rails) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto count = static_cast<uint32_t>(rails.size());
  if (!own_rails_.empty()) return InvalidArgument("the rails have already been opened");
  if (count < 1 || count > RailTable::kMaxRails) {
    return InvalidArgument(std::to_string(count) + " rails: a job has 1 to " + std::to_string(RailTable::kMaxRails));
  }
  if (count > 1) rails_ = std::make_unique<Rails>(static_cast<uint32_t>(routes_.size()), count, events_);
  std::vector<RailTransport*> transports;
  for (const NamedRail& rail : rails) {
    Result<Rail> made = MakeRail(rail, rails_ ? rails_->events(static_cast<uint32_t>(transports.size())) : events_);
    if (!made.ok()) return made.status();
    own_rails_.push_back(std::move(made.value()));
    transports.push_back(TransportOf(own_rails_.back()));
    rail_names_.push_back(rail.name);
  }
  endpoints_.clear();
  if (rails_) rails_->Connect(std::move(transports));
  return Status();
}

Result<Job::Rail> Job::MakeRail(const NamedRail& rail, Transport::Events* events) {
  const std::string name = rails_ ? rail.name : "";
  const auto as_rail = [](auto made) { return made.ok() ? Result<Rail>(std::move(made.value())) : made.status(); };
  switch (rail.kind) {
    case RailKind::kTcp:
      return as_rail(TcpTransport::Create(process_, events, name));
    case RailKind::kUdp:
      return as_rail(UdpTransport::Create(process_, events, name));
    case RailKind::kFabric:
      break;
  }
  const auto endpoint = endpoints_.find(rail.name);
  if (endpoint == endpoints_.end()) return InvalidArgument("the rail " + rail.name + " has no endpoint");
  const auto processes = static_cast<uint32_t>(routes_.size());
  return as_rail(FabricTransport::Create(process_, processes, events, std::move(endpoint->second), name));
}

Result<ShmTransport*> Job::Shm() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!shm_) {
    const auto processes = static_cast<uint32_t>(routes_.size());
    Result<std::unique_ptr<ShmTransport>> made =
        ShmTransport::Create(process_, processes, events_, ShmTransport::ArenaBytes(processes));
    if (!made.ok()) return made.status();
    shm_ = std::move(made.value());
  }
  return shm_.get();
}

Status Job::Add(uint32_t process, Route route) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (process >= routes_.size() || routes_[process] != kNone || router_) {
    return InvalidArgument("process " + std::to_string(process) + " is unknown, already added, or too late to add");
  }
  routes_[process] = route;
  return Status();
}

Status Job::AddShm(uint32_t process, uint64_t nonce, int fd) {
  const Result<ShmTransport*> shm = Shm();
  Status status = shm.ok() ? Add(process, kShm) : shm.status();
  if (!status.ok()) {
    close(fd);
    return status;
  }
  return shm.value()->AddPeer(process, nonce, fd);
}

Status Job::CheckEncryption() { return Libcrypto::Get().status(); }

Status Job::SetRails(uint32_t process, const std::vector<RailTable::Range>& ranges,
                     const std::vector<uint32_t>& connected, const std::vector<uint32_t>& down) {
  if (!rails_) return InvalidArgument("this process has one rail");
  Status status = Add(process, kRails);
  return status.ok() ? rails_->AddProcess(process, ranges, connected, down) : status;
}

Status Job::SetShares(uint32_t process, const std::vector<RailTable::Range>& ranges) {
  std::lock_guard<std::mutex> lock(mutex_);
  return router_ && rails_ ? rails_->SetShares(process, ranges) : InvalidArgument("this process has one rail");
}

template <typename Kind>
Kind* Job::FindKind(uint32_t rail) {
  const auto* const found = rail < own_rails_.size() ? std::get_if<std::unique_ptr<Kind>>(&own_rails_[rail]) : nullptr;
  return found != nullptr ? found->get() : nullptr;
}

template <typename Kind, typename Path>
Status Job::AddTo(uint32_t process, uint32_t rail, const Path& path, const std::vector<int>& descriptors) {
  Kind* const transport = FindKind<Kind>(rail);
  const Status status = transport == nullptr
                            ? InvalidArgument("rail " + std::to_string(rail) + ": this process has no such rail")
                        : rails_ ? Status()
                                 : Add(process, kRails);
  if (status.ok()) return transport->AddPeer(process, path);
  CloseAll(descriptors);
  return status;
}

Status Job::AddTcp(uint32_t process, uint32_t rail, const TcpPath& path) {
  return AddTo<TcpTransport>(process, rail, path, {path.socket});
}

Status Job::AddUdp(uint32_t process, uint32_t rail, const UdpPath& path) {
  return AddTo<UdpTransport>(process, rail, path, SocketsOf(path));
}

Status Job::AddFabric(uint32_t process, uint32_t rail, const FabricPath& path) {
  return AddTo<FabricTransport>(process, rail, path, {path.connection});
}

std::vector<Rails::Lost> Job::lost_rails() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return router_ && rails_ ? rails_->lost() : std::vector<Rails::Lost>();
}

template <typename Kind, typename Path>
Status Job::RestoreTo(const Rails::Lost& lost, const Path& path, const std::vector<int>& descriptors) {
  Kind* const transport = FindKind<Kind>(lost.rail);
  bool is_given = false;
  const auto connect = [&] {
    is_given = true;
    if constexpr (std::is_same_v<Kind, FabricTransport>) {
      return transport->AddPeer(lost.process, path, kTrialLimit);
    } else {
      return transport->AddPeer(lost.process, path);
    }
  };
  const Status status = !rails_                ? InvalidArgument("this process has one rail")
                        : transport == nullptr ? InvalidArgument("this process has no such rail of that kind")
                                               : rails_->Restore(lost, connect);
  if (!is_given) CloseAll(descriptors);
  return status;
}

Status Job::RestoreTcp(const Rails::Lost& lost, const TcpPath& path) {
  return RestoreTo<TcpTransport>(lost, path, {path.socket});
}

Status Job::RestoreUdp(const Rails::Lost& lost, const UdpPath& path) {
  return RestoreTo<UdpTransport>(lost, path, SocketsOf(path));
}

Status Job::RestoreFabric(const Rails::Lost& lost, const FabricPath& path) {
  return RestoreTo<FabricTransport>(lost, path, {path.connection});
}

std::string Job::RailsJson() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Rails::State> rails;
  if (router_ && rails_) rails = rails_->states();
  std::ostringstream out;
  const char* comma = "";
  out << "[";
  for (const Rails::State& rail : rails) {
    out << std::exchange(comma, ",") << "{\"process\":" << rail.process << ",\"host\":" << hosts_[rail.process]
        << ",\"rail\":";
    WriteJsonString(out, rail_names_[rail.rail]);
    out << ",\"is_open\":" << (rail.is_open ? "true" : "false")
        << ",\"has_left\":" << (rail.has_left ? "true" : "false") << ",\"fences\":" << rail.fences
        << ",\"bytes\":" << rail.bytes << ",\"shares\":[";
    const char* between = "";
    for (const auto& [min_bytes, share] : rail.shares) {
      out << std::exchange(between, ",") << "[" << min_bytes << "," << share << "]";
    }
    out << "],";
    rail.history.WriteJson(out);
    out << "}";
  }
  out << "]";
  return out.str();
}

Status Job::Start(std::vector<uint32_t> hosts, const std::vector<std::string>& host_names) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (hosts.size() != routes_.size() || host_names.size() != routes_.size())
    return InvalidArgument("each process needs a host and its name");
  for (size_t process = 0; process < routes_.size(); ++process) {
    if (routes_[process] == kNone && hosts[process] == kAbsent) {
      routes_[process] = kLocal;  // calls with an absent process fail; LocalTransport drops notices to such a process
    } else if (routes_[process] == kNone) {
      return InvalidArgument("process " + std::to_string(process) + " has not been added");
    }
  }
  if (router_ || rail_names_.empty()) return InvalidArgument("the job has already started, or its rails are not open");
  Transport* rails = rails_.get();
  if (!rails_) rails = TransportOf(own_rails_[0]);
  if (Status status = rails_ ? rails_->Start() : Status(); !status.ok()) return status;
  std::vector<Transport*> transports;
  std::vector<uint32_t> routes = routes_;
  for (const auto& [route, transport] : std::initializer_list<std::pair<uint32_t, Transport*>>{
           {kLocal, local_.get()}, {kShm, shm_.get()}, {kRails, rails}}) {
    if (!transport) continue;
    std::replace(routes.begin(), routes.end(), route, static_cast<uint32_t>(transports.size()));
    transports.push_back(transport);
  }
  hosts_ = std::move(hosts);
  for (const std::string& name : host_names) host_names_.push_back(std::make_shared<const std::string>(name));
  router_ = std::make_unique<Router>(std::move(transports), std::move(routes));
  return Status();
}

void Job::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (shm_) shm_->Leave();
  for (const Rail& rail : own_rails_) std::visit([](const auto& transport) { transport->Leave(); }, rail);
  if (rails_) rails_->Stop();
}

// Destroys the rails' transports before `rails_`, because `rails_` receives the transports' events.
void Job::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  router_.reset();
  own_rails_.clear();
  endpoints_.clear();
  rails_.reset();
  shm_.reset();
  local_.reset();
  routes_.clear();
  hosts_.clear();
  host_names_.clear();
  rail_names_.clear();
}

uint32_t Job::process() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return process_;
}

std::optional<uint32_t> Job::FindRail(const std::string& name) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::find(rail_names_.begin(), rail_names_.end(), name);
  if (at == rail_names_.end() || rail_names_.size() == 1) return std::nullopt;
  return static_cast<uint32_t>(at - rail_names_.begin());
}

MessageRank Job::Rank(uint32_t process, uint32_t device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (process >= hosts_.size()) return {process, device};
  return {process, device, hosts_[process], host_names_[process]};
}

std::vector<uint32_t> Job::absent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint32_t> found;
  for (uint32_t process = 0; process < hosts_.size(); ++process) {
    if (hosts_[process] == kAbsent) found.push_back(process);
  }
  return found;
}

Status Job::CheckNumber(uint64_t number, const std::string& who) const {
  if (number == number_) return Status();
  return InvalidArgument(who + ": its executable was loaded before jax.distributed was initialized again.\n" +
                         "  Cure: call jax.clear_caches() and jax.extend.backend.clear_backends() after " +
                         "jax.distributed.shutdown(), and recompile the step.");
}

bool Job::started() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return router_ != nullptr;
}

Job& TheJob() {
  static Job* job = std::make_unique<Job>(&TheExecutor().messages()).release();
  return *job;
}

}  // namespace jaxcomm
