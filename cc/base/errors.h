// The errors of calls that users may catch, in words that jaxcomm/errors.py reads again: whoever changes a sentence
// here changes its pattern there.
//
//   const std::string call = NameCall("psum", 412, "data", 16 << 20, "3f9a01c2");
//   return DeadlineExceeded{call, {3}, {0, 1, 2}, "4", waited}.status();
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/text.h"

namespace jaxcomm {

// Where a process is gone: what to start again, and when not.
inline constexpr char kStartAgain[] =
    "all processes again; where they were started with JAX_ENABLE_RECOVERABILITY=1, the others may go on without it.";

// "psum #412 over 'data' (16 MiB, plan 3f9a01c2)"
inline std::string NameCall(const std::string& name, int64_t number, const std::string& axes, int64_t bytes,
                            const std::string& plan) {
  return name + " #" + std::to_string(number) + " over '" + axes + "' (" + FormatBytes(bytes) + ", plan " + plan + ")";
}

// Some ranks of a call have not arrived before its deadline.
struct DeadlineExceeded {
  std::string call;
  std::vector<uint32_t> missing, waiting;  // at least one each
  std::string of;                          // all ranks of the call: "8", or "the group 0,2,5"
  std::chrono::steady_clock::duration waited;
  std::string done = "arrived";  // or "sent its messages"

  // "DeadlineError: psum #412 over …: rank 3 of 8 has not arrived after 60.0 s; 0,1,2,4,5,6,7 wait."
  Status status() const {
    const bool many = missing.size() > 1;
    return Status(Code::kDeadlineExceeded, "DeadlineError: " + call + ": rank" + (many ? "s " : " ") +
                                               JoinRanks(missing) + " of " + of + (many ? " have" : " has") + " not " +
                                               done + " after " + FormatSeconds(waited) + "; " + JoinRanks(waiting) +
                                               (waiting.size() > 1 ? " wait." : " waits."));
  }
};

// Two ranks bring different groups to one call.
struct Mismatch {
  std::string call;
  uint32_t rank;
  std::string says;
  uint32_t other;
  std::string said;

  // "MismatchError: pmean over 'data': rank 2 says that the groups are [0 1], rank 0 said [1 0].\n  Cure: …"
  Status status() const {
    return InvalidArgument("MismatchError: " + call + ": rank " + std::to_string(rank) + " says that the groups are " +
                           says + ", rank " + std::to_string(other) + " said " + said +
                           ".\n  Cure: pass the same table and step on every rank: replicated, not sharded.");
  }
};

// Two ranks are in one call by its number, but it is not the same one.
struct DifferentCalls {
  std::string call;
  std::string rank;  // with its place
  std::string does;
  std::string other;
  std::string did;

  // "MismatchError: psum #3 over 'data' (4 B, plan none): rank 1 (process 1 on node-b) is in pmax over 'data', f32[1]
  // (4 B), plan none, at train.py:60; rank 0 (process 0 on node-a) is in psum over …\n  Cure: …"
  Status status() const {
    return InvalidArgument("MismatchError: " + call + ": rank " + rank + " is in " + does + "; rank " + other +
                           " is in " + did +
                           ".\n  Cure: run the same program with the same plan and shapes in every process.");
  }
};

// Where not even that error finds memory.
inline constexpr char kNoMemory[] =
    "this process has no memory for the call.\n  Cure: raise the limit on its memory (`ulimit -v`, a container's).";

// A rank cannot receive the other ranks' parts, or come to the call at all.
struct NoMemory {
  std::string call;
  uint32_t rank;
  int64_t bytes = 0;  // that it cannot receive; 0: it cannot come

  // "psum #412 over …: rank 3 has no memory for the 16 MiB that the call receives.\n  Cure: …"
  Status status() const {
    const std::string part = bytes == 0 ? "call" : FormatBytes(bytes) + " that the call receives";
    return Status(Code::kInternal, call + ": rank " + std::to_string(rank) + " has no memory for the " + part +
                                       ".\n  Cure: raise the limit on its process's memory (`ulimit -v`, a " +
                                       "container's), or sum fewer bytes at once.");
  }
};

// A rank of a call will not come or go on.
struct RankGone {
  std::string call;
  uint32_t rank;
  std::string place;  // "process 1 on node-b"
  std::string why;

  // "psum #4 over 'data' (4 B, plan none): rank 3 is gone: process 1 has left.\n  Cure: see what process 1 on node-b …"
  Status status() const {
    return Status(Code::kInternal, call + ": rank " + std::to_string(rank) + " is gone: " + why +
                                       ".\n  Cure: see what " + place + " wrote last, and start " + kStartAgain);
  }
};

}  // namespace jaxcomm
