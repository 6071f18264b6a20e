// The headers that ranks exchange before a call's first message, so that a mismatched call is an error, also between
// hosts.
//
//   CallHeader mine = Header(/*number=*/7, "psum #7 over 'data' (16 MiB)", attributes);
//   Status status = CheckSameCall(headers, /*rank=*/0);   // of all ranks, in their order
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::nccl {

// As it is sent, all bytes of it.
struct CallHeader {
  uint64_t number;       // of the call, from 1
  uint64_t fingerprint;  // of what calls must have in common
  char name[112];        // for errors; zeros after it
};
static_assert(sizeof(CallHeader) == 128);

CallHeader Header(uint64_t number, const std::string& name, std::string_view attributes);

// An error that names the ranks whose call is not that of this rank, and the first such call.
Status CheckSameCall(const std::vector<CallHeader>& headers, uint32_t rank);

}  // namespace jaxcomm::nccl
