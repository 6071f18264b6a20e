#include "cc/ffi/job.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

constexpr int64_t kArenaBytes = int64_t{64} << 20;  // of shared memory for what this process sends

}  // namespace

Status Job::Open(uint32_t process, uint32_t processes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!routes_.empty()) {
    return InvalidArgument("this process is connected to the others of its job already.\n  Cure: start a new process.");
  }
  if (process >= processes) {
    return InvalidArgument("process " + std::to_string(process) + " is none of " + std::to_string(processes));
  }
  Result<std::unique_ptr<TcpTransport>> tcp = TcpTransport::Create(process, events_);
  if (!tcp.ok()) return tcp.status();
  tcp_ = std::move(tcp.value());
  local_ = std::make_unique<LocalTransport>();
  process_ = process;
  routes_.assign(processes, kNone);
  routes_[process] = kLocal;
  return Status();
}

Result<ShmTransport*> Job::Shm() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!shm_) {
    Result<std::unique_ptr<ShmTransport>> made =
        ShmTransport::Create(process_, static_cast<uint32_t>(routes_.size()), events_, kArenaBytes);
    if (!made.ok()) return made.status();
    shm_ = std::move(made.value());
  }
  return shm_.get();
}

Status Job::Add(uint32_t process, Route route) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (process >= routes_.size() || routes_[process] != kNone || router_) {
    return InvalidArgument("process " + std::to_string(process) + " is none that can be added");
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

Status Job::AddTcp(uint32_t process, int socket) {
  if (Status status = Add(process, kTcp); !status.ok()) {
    close(socket);
    return status;
  }
  return tcp_->AddPeer(process, socket);
}

Status Job::Start() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t process = 0; process < routes_.size(); ++process) {
    if (routes_[process] == kNone) {
      return InvalidArgument("process " + std::to_string(process) + " has not been added");
    }
  }
  if (router_ || routes_.empty()) return InvalidArgument("the job is started once, after Open");
  std::vector<Transport*> transports = {local_.get(), tcp_.get()};
  if (shm_) transports.push_back(shm_.get());
  router_ = std::make_unique<Router>(std::move(transports), routes_);
  return Status();
}

void Job::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (shm_) shm_->Leave();
  if (tcp_) tcp_->Leave();
}

bool Job::started() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return router_ != nullptr;
}

Job& TheJob() {
  static Job* job = std::make_unique<Job>(&TheExecutor().events()).release();
  return *job;
}

}  // namespace jaxcomm
