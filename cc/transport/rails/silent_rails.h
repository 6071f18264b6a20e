// Finds the silent rails to a process: packets sent over them stay unanswered while another rail makes progress.
//
//   SilentRails::Found found = silence.Look({progress of rail 0, none if it is not open, …}, now);   // every kLook
//   for (uint32_t rail : found.ask) ...      // send a notice over it, so that it can make progress
//   for (uint32_t rail : found.silent) ...   // fence it
//
// A rail is never silent alone, nor for a time in which this process did not look. Not thread-safe.
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
  // Where a timer of TCP's has to run out first, of which most are of 200 ms: a host may take its time to answer a
  // packet if no other follows, and what was sent again may be lost again.
  static constexpr std::chrono::milliseconds kTimerLimit{300};

  struct Found {
    std::vector<uint32_t> silent, ask;
    bool is_quiet;  // nothing is unanswered
  };

  explicit SilentRails(uint32_t rails) : rails_(rails) {}

  Found Look(const std::vector<std::optional<SendProgress>>& rails, Clock::time_point now);

 private:
  struct Rail {
    uint64_t confirmed = 0;
    Clock::time_point since;     // it makes no progress
    Clock::time_point progress;  // was made
    Clock::time_point asked;
  };

  std::vector<Rail> rails_;
  Clock::time_point looked_;
};

}  // namespace jaxcomm
