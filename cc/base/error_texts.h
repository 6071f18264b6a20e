// Errors of calls. Users may catch these errors. Each error has a text and a record. jaxcomm/errors.py turns the
// record's fields into attributes of the Python exception.
//
//   const CallName call{"psum", "data", "3f9a01c2", 16 << 20, 412};
//   return DeadlineExceeded{call, {3}, {0, 1, 2}, "4", waited}.status();
#pragma once

#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/json.h"
#include "cc/base/status.h"
#include "cc/base/text.h"

namespace jaxcomm {

// The text that follows "Cure: …, and start " in errors about a terminated process.
inline constexpr char kStartAgain[] =
    "all processes again; with JAX_ENABLE_RECOVERABILITY=1 and live_devices, the others go on, and it rejoins when "
    "started again.";

struct CallName {
  std::string name, axes, plan;
  int64_t bytes = 0;
  int64_t number = 0;  // the call's number in this process, counted from 1; 0 stands for all calls of the call site

  // Returns "psum #412 over 'data' (16 MiB, plan 3f9a01c2)", or "psum over 'data'" if `number` is 0.
  std::string Text() const {
    if (number == 0) return name + " over '" + axes + "'";
    return name + " #" + std::to_string(number) + " over '" + axes + "' (" + FormatBytes(bytes) +
           (plan.empty() ? "" : ", plan " + plan) + ")";
  }
};

// Writes a record: {"error":"DeadlineError","name":"psum","axes":"data","plan":"3f9a01c2","number":412,"missing":[3],…}
class ErrorRecord {
 public:
  // `error`: the name of the class in jaxcomm/errors.py.
  ErrorRecord(const char* error, const CallName& call) {
    out_ << "{\"error\":\"" << error << "\",\"name\":";
    WriteJsonString(out_, call.name);
    out_ << ",\"axes\":";
    WriteJsonString(out_, call.axes);
    out_ << ",\"plan\":";
    WriteJsonString(out_, call.plan);
    if (call.number > 0) out_ << ",\"number\":" << call.number;
  }

  // Writes the name of the next field; the caller writes its value.
  std::ostream& Field(const char* name) { return out_ << ",\"" << name << "\":"; }

  void AddRanks(const char* name, const std::vector<uint32_t>& ranks) {
    Field(name) << '[';
    for (size_t i = 0; i < ranks.size(); ++i) out_ << (i > 0 ? "," : "") << ranks[i];
    out_ << ']';
  }

  std::string Text() const { return out_.str() + "}"; }

 private:
  std::ostringstream out_;
};

// Some ranks of a call did not arrive before its deadline.
struct DeadlineExceeded {
  CallName call;
  std::vector<uint32_t> missing, waiting;  // each has at least one rank
  std::string of;                          // the ranks of the call in words: "8", or "the group 0,2,5"
  std::chrono::steady_clock::duration waited;
  std::string done = "arrived";  // what the missing ranks have not done, such as "sent all messages"

  // Example: "DeadlineError: psum #412 over …: rank 3 of 8 has not arrived after 60.0 s; 0,1,2,4,5,6,7 wait."
  Status status(const std::string& more = "") const {
    const bool many = missing.size() > 1;
    ErrorRecord record("DeadlineError", call);
    record.AddRanks("missing", missing);
    record.AddRanks("waiting", waiting);
    record.Field("seconds") << std::chrono::duration<double>(waited).count();
    return Status(Code::kDeadlineExceeded,
                  "DeadlineError: " + call.Text() + ": rank" + (many ? "s " : " ") + JoinRanks(missing) + " of " + of +
                      (many ? " have" : " has") + " not " + done + " after " + FormatSeconds(waited) + "; " +
                      JoinRanks(waiting) + (waiting.size() > 1 ? " wait." : " waits.") + more,
                  record.Text());
  }
};

// Two ranks pass different groups to the same call.
struct Mismatch {
  CallName call;
  uint32_t rank;
  std::string groups;  // the groups that `rank` passed: for each rank, the number of its group, such as "[0 1]"
  uint32_t other;
  std::string other_groups;

  // Example: "MismatchError: pmean over 'data': rank 2 has the groups [0 1], rank 0 has [1 0].\n  Cure: …"
  Status status() const {
    ErrorRecord record("MismatchError", call);
    std::string rows;
    AddRow(rows, rank, groups);
    AddRow(rows, other, other_groups);
    record.Field("groups") << '[' << rows << ']';
    return InvalidArgument("MismatchError: " + call.Text() + ": rank " + std::to_string(rank) + " has the groups " +
                               groups + ", rank " + std::to_string(other) + " has " + other_groups +
                               ".\n  Cure: pass the same table and step on every rank: replicated, not sharded.",
                           record.Text());
  }

 private:
  // Appends a row such as [2,[0,1]], or nothing if the sender truncated the groups' text.
  static void AddRow(std::string& rows, uint32_t rank, std::string groups) {
    if (groups.empty() || groups.back() != ']') return;
    for (char& letter : groups) letter = letter == ' ' ? ',' : letter;
    rows += (rows.empty() ? "[" : ",[") + std::to_string(rank) + "," + groups + "]";
  }
};

// Two ranks run different calls under the same call number.
struct DifferentCalls {
  struct Side {
    uint32_t rank;
    std::string place;  // "process 1 on node-b"
    std::string does;   // the rank's call in words
  };

  CallName call;
  Side one, other;

  // Example: "MismatchError: psum #3 over 'data' (4 B, plan none): rank 1 (process 1 on node-b) is in pmax over 'data',
  // f32[1] (4 B), plan none, at train.py:60; rank 0 (process 0 on node-a) is in psum over …\n  Cure: …"
  Status status() const {
    ErrorRecord record("MismatchError", call);
    std::ostream& calls = record.Field("calls");
    for (const Side* side : {&one, &other}) {
      calls << (side == &one ? "[[" : ",[") << side->rank << ',';
      WriteJsonString(calls, side->does);
      calls << ']';
    }
    calls << ']';
    return InvalidArgument("MismatchError: " + call.Text() + ": " + Text(one) + "; " + Text(other) +
                               ".\n  Cure: run the same program with the same plan and shapes in every process.",
                           record.Text());
  }

 private:
  static std::string Text(const Side& side) {
    return "rank " + std::to_string(side.rank) + " (" + side.place + ") is in " + side.does;
  }
};

// The error text if memory does not even suffice to make a NoMemory error.
inline constexpr char kNoMemory[] =
    "this process has no memory for the call.\n  Cure: raise the limit on its memory (`ulimit -v`, a container's).";

// A rank lacks the memory to receive the other ranks' parts, or lacks the memory to join the call.
struct NoMemory {
  CallName call;
  uint32_t rank;
  int64_t bytes = 0;  // the bytes that the rank cannot receive; 0 if the rank cannot join

  // Example: "psum #412 over …: rank 3 has no memory for the 16 MiB that the call receives.\n  Cure: …"
  Status status() const {
    const std::string part = bytes == 0 ? "call" : FormatBytes(bytes) + " that the call receives";
    return Status(Code::kInternal, call.Text() + ": rank " + std::to_string(rank) + " has no memory for the " + part +
                                       ".\n  Cure: raise the limit on its process's memory (`ulimit -v`, a " +
                                       "container's), or sum fewer bytes at once.");
  }
};

// A rank of a call will not arrive, or will not continue.
struct RankGone {
  CallName call;
  uint32_t rank, process;
  std::string place;  // "process 1 on node-b"
  std::string why;

  // Example: "psum #4 over 'data' (4 B, plan none): rank 3 is gone: process 1 has left.\n  Cure: see what process 1 …"
  Status status() const {
    const Status status(Code::kInternal, call.Text() + ": rank " + std::to_string(rank) + " is gone: " + why +
                                             ".\n  Cure: see what " + place + " wrote last, and start " + kStartAgain);
    return status.CausedByEndOf(process);
  }
};

}  // namespace jaxcomm
