// The programs of collectives without a plan. Every process can make such a program from its name.
//
//   std::vector<uint32_t> words = DirectProgram("all_reduce/8");   // empty: no such name
//
// A buffer has one chunk per rank. After "all_reduce/8", all 8 ranks hold the sum of every chunk. After
// "reduce_scatter/8", rank c holds the sum of chunk c. After "all_gather/8", all ranks hold chunk c of rank c. Each
// program has one op per chunk, and no op waits for another.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxcomm {

// Returns the program, encoded as program.h describes.
std::vector<uint32_t> DirectProgram(std::string_view name);

}  // namespace jaxcomm
