// The notices by which processes report arrivals, decisions and failures to each other.
//
//   transport.Notify(process, Encode(Arrival{call, rank, device, fingerprint, "psum over 'data', f32[8] (32 B), …"}));
//   std::optional<Notice> notice = DecodeNotice(bytes);   // nullopt: malformed
//
// The format is little-endian: a byte for the kind, the call, then the fields in order. Texts and records come last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "cc/base/status.h"
#include "cc/executor/decide/schedule_selector.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A rank has arrived at a call. Its first receives are posted, unless the rank waits until the schedule is decided.
struct Arrival {
  static constexpr size_t kMaxText = 300;

  CallId call;
  uint32_t rank;
  uint32_t device;       // the rank's name in error texts
  uint64_t fingerprint;  // a hash of the call's description, the same on all ranks
  std::string text;      // describes the call, for errors
  bool waits = false;    // whether the rank waits until the schedule is decided
};

// The process of the decider has selected the call's schedule.
struct Decided {
  CallId call;
  ScheduleSelector::Decision decision;
};

// The call has failed on the ranks of the sending process. Other ranks need not wait for these ranks.
struct Failure {
  static constexpr size_t kMaxText = 2000;
  static constexpr size_t kMaxRecord = 12 << 10;

  // The process whose end has made the call fail.
  struct Gone {
    static constexpr size_t kMaxText = 500;

    uint32_t process;
    bool has_left;
    std::string why;
  };

  CallId call;
  Status why;
  uint64_t step;  // a hash of the step that has the call
  std::optional<Gone> gone = std::nullopt;
};

using Notice = std::variant<Arrival, Decided, Failure>;

// A text that is too long is cut between two code points. A record that is too long is left out.
std::string Encode(const Arrival& arrival);
std::string Encode(const Decided& decided);
std::string Encode(const Failure& failure);
std::optional<Notice> DecodeNotice(std::string_view bytes);

}  // namespace jaxcomm
