// The functions of libnccl that jaxcomm calls. They are looked up at run time in the copy that JAX has loaded. If JAX
// has loaded no copy, Open loads the given file.
//
//   Result<const Library*> nccl = Library::Open("/…/nvidia/nccl/lib/libnccl.so.2");
//   if (!nccl.ok()) ...         // the error text says in one line why there is no NCCL
//   nccl.value()->GroupStart();
//
// This header declares the functions itself, so a build needs no NCCL. The library stays open until the process ends.
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
  // Thread-safe. All calls return the result of the first call: the library, or an error with the reason why no library
  // was found.
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

  // Returns ok if `outcome` is kSuccess, otherwise an error with the operation and NCCL's own error text.
  Status Check(const std::string& operation, Outcome outcome, Comm comm) const;
};

}  // namespace jaxcomm::nccl
