// What carries the calls of a group's ranks, until its first fault.
//
//   Status status = carrier.Await(attendance, done, start, deadline);
//
// After a fault it carries nothing more, and tells every call what the fault was. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/attendance.h"
#include "cc/nccl/library.h"
#include "cc/nccl/settle.h"

namespace jaxcomm::nccl {

class Carrier {
 public:
  Carrier(const Library& nccl, uint32_t rank, uint32_t ranks) : nccl_(nccl), rank_(rank), ranks_(ranks) {}
  virtual ~Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  const Library& library() const { return nccl_; }
  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }
  std::vector<uint32_t> everybody() const;

  // The first fault, looked for now if there was none; ok if there is none.
  Status Check();

  // Makes this the fault, if it is the first, and returns what the fault is.
  Status Fail(Status status);

  // Waits until `done`, a fault or the deadline, which is one.
  Status Await(const Attendance& attendance, const std::function<bool()>& done, Clock::time_point start,
               Clock::time_point deadline);

 protected:
  // Both are called with the lock. What NCCL reports by itself; ok if it is nothing.
  virtual Status FirstError() = 0;
  // Ends whatever runs, where that can be done, and returns what the calls to come are told.
  virtual Status Stop(Status fault) = 0;

  const Library& nccl_;
  std::mutex mutex_;
  Status failure_;

 private:
  const uint32_t rank_;
  const uint32_t ranks_;
};

}  // namespace jaxcomm::nccl
