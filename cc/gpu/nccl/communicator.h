// One rank's NCCL communicator. Join connects the rank to all its peers, so that no later group of messages blocks the
// host.
//
//   auto made = Communicator::Join(nccl, device, {ranks, rank, id}, std::chrono::seconds(60));   // on all ranks
//   Status status = made.value()->Run([&](const Library& nccl, Comm comm) { return Queue(nccl, comm, ...); });
//
// Join waits for the other ranks until its deadline; no other function waits. After NCCL has reported an error, every
// later Run returns that error. Thread-safe. The destructor aborts operations that still run, and waits for no rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "cc/base/status.h"
#include "cc/gpu/nccl/library.h"

namespace jaxcomm::nccl {

struct GroupRank {
  uint32_t ranks;
  uint32_t rank;
  Id id;  // made by one rank and passed to all ranks
};

class Communicator {
 public:
  static Result<std::shared_ptr<Communicator>> Join(const Library& nccl, int device, const GroupRank& joining,
                                                    std::chrono::duration<double> deadline);
  Communicator(const Library& nccl, const GroupRank& joining) : nccl_(nccl), joining_(joining) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  uint32_t rank() const { return joining_.rank; }
  uint32_t ranks() const { return joining_.ranks; }

  // Calls queue(), which queues work on a stream and returns before the work is done. If NCCL has reported an error,
  // returns this error and queues nothing.
  Status Run(const std::function<Status(const Library& nccl, Comm comm)>& queue);

 private:
  Status Connect(int device);

  const Library& nccl_;
  const GroupRank joining_;
  std::mutex mutex_;
  Comm comm_ = nullptr;
  Status failure_;
};

}  // namespace jaxcomm::nccl
