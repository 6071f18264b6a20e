// The functions of libnccl that jaxcomm calls, taken at run time from the copy that JAX has loaded.
//
//   Result<const Library*> nccl = Library::Open("/…/nvidia/nccl/lib/libnccl.so.2");   // used if none is loaded yet
//   if (!nccl.ok()) ...                       // one line: why there is no NCCL
//   nccl.value()->GroupStart();
//
// The declarations are ours, of NCCL's stable C interface, so that building needs no NCCL. Libraries stay open until
// the process ends.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm::nccl {

struct Opaque;
using Comm = Opaque*;  // ncclComm_t
using Outcome = int;   // ncclResult_t
constexpr Outcome kSuccess = 0;
constexpr int kInt8 = 0;  // ncclInt8: messages are bytes

struct Id {
  char bytes[128];
};

struct Library {
  // Thread-safe. The first call decides; what it found, or why there is none, is the answer to all.
  static Result<const Library*> Open(const std::string& path);

  Outcome (*GetVersion)(int* version) = nullptr;
  const char* (*GetErrorString)(Outcome outcome) = nullptr;
  const char* (*GetLastError)(Comm comm) = nullptr;
  Outcome (*GetUniqueId)(Id* id) = nullptr;
  Outcome (*CommInitRank)(Comm* comm, int ranks, Id id, int rank) = nullptr;
  Outcome (*CommGetAsyncError)(Comm comm, Outcome* outcome) = nullptr;
  Outcome (*CommAbort)(Comm comm) = nullptr;
  Outcome (*GroupStart)() = nullptr;
  Outcome (*GroupEnd)() = nullptr;
  Outcome (*Send)(const void* from, size_t count, int type, int peer, Comm comm, cudaStream_t stream) = nullptr;
  Outcome (*Recv)(void* to, size_t count, int type, int peer, Comm comm, cudaStream_t stream) = nullptr;

  // An error of NCCL's in an operation, with NCCL's words for it; ok for success.
  Status Check(const std::string& operation, Outcome outcome, Comm comm) const;
};

}  // namespace jaxcomm::nccl
