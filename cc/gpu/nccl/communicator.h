// A rank's NCCL communicator, until its first fault.
//
//   auto made = Communicator::Create(nccl, {ranks, rank, id}, arrivals, Clock::now() + deadline);   // with all ranks
//   NcclChannel channel(nccl, made.value()->comm(), ...);
//   Status status = made.value()->Await(report, done, start, deadline);
//
// Nothing waits longer than its deadline, unless the environment has NCCL block (NCCL_COMM_BLOCKING=1). After a fault
// whatever runs on it is stopped, and every call gets the fault. Check, Fail and Await are thread-safe. The
// destructor ends what still runs; unlike NCCL's destroy, it waits for nobody.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cc/base/status.h"
#include "cc/gpu/nccl/arrival_report.h"
#include "cc/gpu/nccl/arrival_table.h"
#include "cc/gpu/nccl/await.h"
#include "cc/gpu/nccl/library.h"

namespace jaxcomm::nccl {

struct GroupRank {
  uint32_t ranks;
  uint32_t rank;
  Id id;  // which one of the ranks made
};

class Communicator {
 public:
  // The rank first arrives in `arrivals`, which may be null; it must outlive what is made.
  static Result<std::unique_ptr<Communicator>> Create(const Library& nccl, const GroupRank& joining,
                                                      ArrivalTable* arrivals, Clock::time_point deadline);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Library& library() const { return nccl_; }
  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }
  Comm comm() const { return comm_; }

  // The first fault, looked for now if there was none; ok if there is none.
  Status Check();

  // Makes this the fault, if it is the first, and returns what the fault is.
  Status Fail(Status status);

  // Waits until `done`, a fault or the deadline, which is one.
  Status Await(const ArrivalReport& report, const std::function<bool()>& done, Clock::time_point start,
               Clock::time_point deadline);

 private:
  Communicator(const Library& nccl, const GroupRank& joining)
      : nccl_(nccl), rank_(joining.rank), ranks_(joining.ranks) {}

  std::string Self() const;  // how errors begin: "NCCL, rank 0 of 4: "
  Status FirstError() const;
  void Abort();

  const Library& nccl_;
  const uint32_t rank_, ranks_;
  Comm comm_ = nullptr;  // null: aborted
  std::mutex mutex_;
  Status failure_;
};

}  // namespace jaxcomm::nccl
