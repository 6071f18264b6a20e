// Finds the silent rails to a process. A rail is silent if its packets stay unacknowledged while another rail makes
// progress.
//
//   SilentRails::Found found = silence.Look({progress of rail 0, nullopt if it is not open, …}, now);   // every kLook
//   for (uint32_t rail : found.ask) ...      // send a notice over this idle rail, so that it can make progress
//   for (uint32_t rail : found.silent) ...   // fence this rail
//
// Pauses in which this process did not look do not count as silence. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc/transport/rail_transport.h"

namespace jaxcomm {

class SilentRails {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kLook{20};
  static constexpr std::chrono::milliseconds kLimit{100};
  // The limit for a rail that may be waiting for a TCP timer, usually of 200 ms. A host may delay the acknowledgement
  // of a single packet by such a timer, and retransmitted packets that are lost again wait for such a timer.
  static constexpr std::chrono::milliseconds kTimerLimit{300};

  struct Found {
    std::vector<uint32_t> silent, ask;
    bool is_quiet;  // every packet is acknowledged
  };

  explicit SilentRails(uint32_t rails) : rails_(rails) {}

  Found Look(const std::vector<std::optional<SendProgress>>& rails, Clock::time_point now);

 private:
  struct Rail {
    uint64_t confirmed = 0;
    Clock::time_point since;     // the rail has made no progress since then
    Clock::time_point progress;  // time of the latest progress
    Clock::time_point asked;
  };

  std::vector<Rail> rails_;
  Clock::time_point looked_;
};

}  // namespace jaxcomm
