#include "cc/ffi/job.h"

#include <unistd.h>

#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/json.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

void CloseAll(const std::vector<int>& descriptors) {
  for (const int descriptor : descriptors) close(descriptor);
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

Status Job::OpenRails(RailKind kind, const std::vector<std::string>& names) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto rails = static_cast<uint32_t>(names.size());
  if (!tcp_.empty() || !udp_.empty()) return InvalidArgument("the rails have already been opened");
  if (rails < 1 || rails > RailTable::kMaxRails) {
    return InvalidArgument(std::to_string(rails) + " rails: a job has 1 to " + std::to_string(RailTable::kMaxRails));
  }
  if (rails > 1) rails_ = std::make_unique<Rails>(static_cast<uint32_t>(routes_.size()), rails, events_);
  std::vector<RailTransport*> transports;
  const auto add = [&](auto made, auto& opened) {
    if (!made.ok()) return made.status();
    opened.push_back(std::move(made.value()));
    transports.push_back(opened.back().get());
    return Status();
  };
  for (uint32_t rail = 0; rail < rails; ++rail) {
    Transport::Events* const events = rails_ ? rails_->events(rail) : events_;
    const std::string name = rails_ ? names[rail] : "";
    Status status = kind == RailKind::kTcp ? add(TcpTransport::Create(process_, events, name), tcp_)
                                           : add(UdpTransport::Create(process_, events, name), udp_);
    if (!status.ok()) return status;
  }
  if (rails_) rails_->Connect(std::move(transports));
  rail_names_ = names;  // Start fails if there are no names
  return Status();
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

// `rails`: the number of rails of the connection's kind.
Status Job::AddTo(uint32_t process, uint32_t rail, size_t rails) {
  if (rail >= rails) return InvalidArgument("rail " + std::to_string(rail) + ": this process has no such rail");
  return rails_ ? Status() : Add(process, kRails);
}

Status Job::AddTcp(uint32_t process, uint32_t rail, int socket) {
  Status status = AddTo(process, rail, tcp_.size());
  if (status.ok()) return tcp_[rail]->AddPeer(process, socket);
  CloseAll({socket});
  return status;
}

Status Job::AddUdp(uint32_t process, uint32_t rail, const UdpPath& path) {
  Status status = AddTo(process, rail, udp_.size());
  if (status.ok()) return udp_[rail]->AddPeer(process, path);
  CloseAll({path.connection, path.socket});
  return status;
}

std::vector<Rails::Lost> Job::lost_rails() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return router_ && rails_ ? rails_->lost() : std::vector<Rails::Lost>();
}

Status Job::RestoreTcp(const Rails::Lost& lost, int socket) {
  const auto connect = [&] { return tcp_[lost.rail]->AddPeer(lost.process, socket); };
  return Restore(lost, tcp_.size(), connect, {socket});
}

Status Job::RestoreUdp(const Rails::Lost& lost, const UdpPath& path) {
  const auto connect = [&] { return udp_[lost.rail]->AddPeer(lost.process, path); };
  return Restore(lost, udp_.size(), connect, {path.connection, path.socket});
}

// `rails`: the number of rails of the connection's kind. `connect` takes ownership of the descriptors.
Status Job::Restore(const Rails::Lost& lost, size_t rails, const std::function<Status()>& connect,
                    const std::vector<int>& descriptors) {
  bool is_given = false;
  const auto give = [&] {
    is_given = true;
    return connect();
  };
  const Status status = !rails_              ? InvalidArgument("this process has one rail")
                        : lost.rail >= rails ? InvalidArgument("this process has no such rail of that kind")
                                             : rails_->Restore(lost, give);
  if (!is_given) CloseAll(descriptors);
  return status;
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
      routes_[process] = kLocal;  // calls with an absent process fail; LocalTransport drops notices to this process
    } else if (routes_[process] == kNone) {
      return InvalidArgument("process " + std::to_string(process) + " has not been added");
    }
  }
  if (router_ || rail_names_.empty()) return InvalidArgument("the job has already started, or its rails are not open");
  Transport* rails = rails_.get();
  if (!rails_) rails = tcp_.empty() ? static_cast<Transport*>(udp_[0].get()) : tcp_[0].get();
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
  for (const auto& tcp : tcp_) tcp->Leave();
  for (const auto& udp : udp_) udp->Leave();
  if (rails_) rails_->Stop();
}

// Destroys the rails' transports before `rails_`, because `rails_` receives the transports' events.
void Job::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  router_.reset();
  tcp_.clear();
  udp_.clear();
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

bool Job::has_processor_each() const {
  const auto here = std::count(hosts_.begin(), hosts_.end(), hosts_[process_]);
  return here <= static_cast<int64_t>(std::thread::hardware_concurrency());
}

Job& TheJob() {
  static Job* job = std::make_unique<Job>(&TheExecutor().messages()).release();
  return *job;
}

}  // namespace jaxcomm
