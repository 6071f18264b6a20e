// The ranks that have come to one call, and the errors that name those that have not.
//
//   ArrivalReport report{{"psum", "data", "", 16 << 20, /*number=*/7}, /*rank=*/0, ranks, arrivals, /*number=*/7};
//   return report.Late(waited);   // DeadlineError: psum #7 …: rank 2 of 4 has not arrived after 60.0 s; 0,1,3
//   wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cc/base/errors.h"
#include "cc/base/status.h"
#include "cc/gpu/nccl/arrival_table.h"

namespace jaxcomm::nccl {

struct ArrivalReport {
  CallName call;           // for errors
  uint32_t rank;           // this one
  uint32_t ranks;          // in all
  ArrivalTable* arrivals;  // null: nothing is known of the others
  uint64_t number;         // of the call, from 1

  void Arrive() const;

  // This rank has waited for so long that the call has failed.
  Status Late(std::chrono::steady_clock::duration waited) const;
  // The call has failed otherwise.
  Status Lost(const Status& error) const;

 private:
  std::string Absent() const;  // "rank 2 of 4 has not arrived"; empty: nobody is known not to
};

}  // namespace jaxcomm::nccl
