// Who takes part in one call, and the errors that name those who do not.
//
//   Attendance attendance{"psum #7 over 'data' (16 MiB)", /*rank=*/0, ranks, members, board, {7, print}};
//   return attendance.Late(waited);   // DeadlineError: psum #7 …: rank 2 of 4 has not arrived after 60.0 s; 0,1,3
//   wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/board.h"

namespace jaxcomm::nccl {

struct Attendance {
  std::string call;               // its name, for errors
  uint32_t rank;                  // this one
  uint32_t ranks;                 // in all
  std::vector<uint32_t> members;  // those who make the call, ascending
  Board* board;                   // null: nothing is known of the others
  CallNumber number;

  void Arrive() const;

  // This rank has waited for so long that the call has failed.
  Status Late(std::chrono::steady_clock::duration waited) const;
  // The call has failed; the cause may be that it is not the call of the others.
  Status Lost(const Status& error) const;
  // Other ranks make another call where this one should be; ok if none is known to.
  Status WrongOrder() const;

 private:
  std::string Absent() const;  // "rank 2 of 4 has not arrived"; empty: nobody is known not to
};

}  // namespace jaxcomm::nccl
