// The programs of collectives that follow no plan, which every process can make from their names.
//
//   std::vector<uint32_t> words = DirectProgram("all_reduce/8");   // empty: no such name
//
// There are as many chunks as ranks. Afterwards all ranks hold the sum of every chunk ("all_reduce/8"), rank c that of
// chunk c ("reduce_scatter/8"), or all ranks hold what rank c had as chunk c ("all_gather/8"). One pass each, no waits.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxcomm {

// Encoded as described in program.h.
std::vector<uint32_t> DirectProgram(std::string_view name);

}  // namespace jaxcomm
