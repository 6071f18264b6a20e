// The number of a call site between processes, alike in all of them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace jaxcomm {

// The number of the next copy of a call. XLA may copy one, where a function is called twice: each copy of it is a call
// site of its own, as are the groups of a call that bring divisions of their own. All processes compile the same
// module, so they see the copies in one order. None: the module has too many calls.
inline std::optional<uint32_t> NumberCall(int64_t module, int64_t lowering, int64_t number) {
  constexpr uint32_t kMaxCopies = 1 << 12;
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, int64_t>, uint32_t> copies;
  std::lock_guard<std::mutex> lock(mutex);
  const uint32_t copy = copies[{module, lowering, number}]++;
  if (copy >= kMaxCopies || number >= (int64_t{1} << 20)) return std::nullopt;
  return static_cast<uint32_t>(number) * kMaxCopies + copy;
}

}  // namespace jaxcomm
