// Assigns numbers to the calls of a step on one communicator. All processes assign the same number to a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "cc/executor/sites/message_site.h"

namespace jaxcomm {

struct CallNumber {
  uint32_t site;                     // different for each copy of a call
  uint32_t number;                   // the same for all copies of a call
  std::shared_ptr<const Step> step;  // the call's step, whose number of calls is final once the step is launched
};

// Assigns a number to the next copy of a call. XLA may copy a call, for example if a function is called twice, and each
// copy is a call site. If several processes compile the same step, they number its copies in the same order. Each
// generation numbers the copies from 0 again, because some processes of the generation may be new. Returns nullopt if
// the step has too many calls, or the call too many copies.
inline std::optional<CallNumber> NumberCall(uint64_t generation, uint64_t communicator, int64_t module,
                                            int64_t lowering, int64_t number) {
  constexpr uint32_t kMaxCopies = 1 << 12, kMaxCalls = 1 << 20;
  struct Lowered {
    std::shared_ptr<Step> step = std::make_shared<Step>();
    std::map<int64_t, uint32_t> copies;  // by call number, the number of copies so far
  };
  static std::mutex mutex;
  static std::map<std::tuple<uint64_t, int64_t, int64_t>, Lowered> steps;
  static uint64_t numbered = 0;  // the generation of `steps`
  std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(numbered, generation) != generation) steps.clear();
  Lowered& lowered = steps[{communicator, module, lowering}];
  const uint32_t copy = lowered.copies[number]++;
  if (copy >= kMaxCopies || number < 0 || number >= kMaxCalls) return std::nullopt;
  const auto call = static_cast<uint32_t>(number);
  lowered.step->hash = static_cast<uint64_t>(module);
  lowered.step->calls = std::max(lowered.step->calls.load(), call + 1);
  return CallNumber{call * kMaxCopies + copy, call, lowered.step};
}

}  // namespace jaxcomm
