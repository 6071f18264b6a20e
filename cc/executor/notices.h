// The notices by which processes report arrivals, decisions and failures to each other, each in one notice of the
// transport.
//
//   transport.Notify(process, Encode(Arrival{call, rank, device, fingerprint, "psum over 'data', f32[8] (32 B), …"}));
//   std::optional<Notice> notice = DecodeNotice(bytes);   // none: malformed
//
// Little-endian: a byte for the kind, the call, then the fields in order; texts and records come last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "cc/base/status.h"
#include "cc/executor/schedule_selector.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A rank has come to a call: its first receives are posted, unless it waits until the call's schedule is decided.
struct Arrival {
  static constexpr size_t kMaxText = 300;

  CallId call;
  uint32_t rank;
  uint32_t device;       // the rank's name in messages
  uint64_t fingerprint;  // of what the call does; alike on all ranks
  std::string text;      // the same in words for the user
  bool waits = false;
};

// The decider's process has selected the call's schedule.
struct Decided {
  CallId call;
  ScheduleSelector::Decision decision;
};

// The call has failed on the ranks of a process, which the others need not wait for.
struct Failure {
  static constexpr size_t kMaxText = 2000;
  static constexpr size_t kMaxRecord = 12 << 10;

  // The process whose end has failed the call.
  struct Gone {
    uint32_t process;
    bool has_left;
  };

  CallId call;
  Status why;
  uint64_t step;  // a hash of the step of which the call is part
  std::optional<Gone> gone = std::nullopt;
};

using Notice = std::variant<Arrival, Decided, Failure>;

// Text that is too long is cut before a letter; a record that is too long is left out.
std::string Encode(const Arrival& arrival);
std::string Encode(const Decided& decided);
std::string Encode(const Failure& failure);
std::optional<Notice> DecodeNotice(std::string_view bytes);

}  // namespace jaxcomm
