// The limit between small and large memory blocks. If memory for a small block runs out, the process ends.
//
// Blocks of fewer than kSmallBlock bytes hold the state of calls. If memory ran out in the middle of a call, this state
// could be updated only in part, and the call's result might be wrong. Larger blocks hold the bytes of one call. If
// memory for a larger block runs out, only that call fails.
#pragma once

#include <cstddef>

namespace jaxcomm {

constexpr std::size_t kSmallBlock = 64 << 10;

}  // namespace jaxcomm
