// An all-reduce by messages, as XLA asks for it.
//
//   return AllReduce(stream, scratch, args, results, {"psum", "data", -1, "3f9a01c2…", "sum", {1.0}},
//   /*borrow=*/nullptr);
//
// Waits for its own end (lanes.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "cc/ffi/cuda/lanes.h"
#include "cc/ffi/cuda/memberships.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

struct Asked {
  std::string_view what;  // "psum"
  std::string_view group;
  int64_t iteration;  // of the period of groups whose turn it is; below 0: the call is of all ranks
  std::string_view messages;
  std::string_view reduction;
  std::vector<double> shares;  // of the rails
};

// What XLA lends for a call, and what is to happen on it first.
struct Borrowed {
  nccl::Comm comm = nullptr;
  Before before = [](nccl::Clock::time_point) { return Status(); };
};

// Borrows from XLA; null: the group has communicators of ours.
using Borrow = std::function<Status(Part& part, Borrowed& borrowed)>;

xla::ffi::Error AllReduce(cudaStream_t stream, xla::ffi::ScratchAllocator& scratch, xla::ffi::RemainingArgs args,
                          xla::ffi::RemainingRets results, const Asked& asked, const Borrow& borrow);

}  // namespace jaxcomm
