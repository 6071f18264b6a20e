// The functions of libnccl that jaxcomm calls, taken at run time from the copy that JAX has loaded.
//
//   Result<const Library*> nccl = Library::Open("/…/nvidia/nccl/lib/libnccl.so.2");   // used if none is loaded yet
//   if (!nccl.ok()) ...                       // one line: why there is no NCCL
//   nccl.value()->GroupStart();
//
// The declarations are ours, of NCCL's stable C interface, so that building needs no NCCL. Libraries stay open until
// the process ends.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm::nccl {

struct Opaque;
using Comm = Opaque*;  // ncclComm_t
using Stream = void*;  // cudaStream_t
using Outcome = int;   // ncclResult_t
constexpr Outcome kSuccess = 0;
constexpr Outcome kInProgress = 7;
constexpr int kInt8 = 0;  // ncclInt8: messages are bytes
constexpr int kUnset = INT_MIN;
constexpr int kLeastVersion = 22800;

struct Id {
  char bytes[128];
};

// The beginning of ncclConfig_t, as NCCL 2.25 knew it: later versions take it by its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 22500;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
  int traffic_class = kUnset;
};

struct Library {
  // Thread-safe. The first call decides; what it found, or why there is none, is the answer to all.
  static Result<const Library*> Open(const std::string& path);
  // The table of one file, for tests; it is never loaded twice.
  static Result<Library> Load(const std::string& path);

  int version = 0;
  std::string path;

  Outcome (*GetVersion)(int* version) = nullptr;
  const char* (*GetErrorString)(Outcome outcome) = nullptr;
  Outcome (*GetUniqueId)(Id* id) = nullptr;
  Outcome (*CommInitRankConfig)(Comm* comm, int ranks, Id id, int rank, Config* config) = nullptr;
  Outcome (*CommGetAsyncError)(Comm comm, Outcome* outcome) = nullptr;
  Outcome (*CommAbort)(Comm comm) = nullptr;
  Outcome (*GroupStart)() = nullptr;
  Outcome (*GroupEnd)() = nullptr;
  Outcome (*Send)(const void* from, size_t count, int type, int peer, Comm comm, Stream stream) = nullptr;
  Outcome (*Recv)(void* to, size_t count, int type, int peer, Comm comm, Stream stream) = nullptr;
  Outcome (*AllGather)(const void* from, void* to, size_t count, int type, Comm comm, Stream stream) = nullptr;

  // Null where the library has none.
  const char* (*GetLastError)(Comm comm) = nullptr;

  // "2.30.7"
  std::string VersionText() const;
  // What a call that failed says of it: NCCL's words for the outcome and, if it has them, for what went wrong last.
  Status Error(const std::string& operation, Outcome outcome, Comm comm) const;
};

}  // namespace jaxcomm::nccl
