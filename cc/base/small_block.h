// The blocks without which a process ends.
//
// If memory runs out in the midst of a call, the call's state would be half changed, and its result might be wrong.
// Blocks of fewer than kSmallBlock bytes hold such state. Larger blocks hold the bytes of one call, which then fails.
#pragma once

#include <cstddef>

namespace jaxcomm {

constexpr std::size_t kSmallBlock = 64 << 10;

}  // namespace jaxcomm
