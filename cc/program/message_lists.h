// The messages of collectives that follow no plan, which every process can make from their names.
//
//   std::vector<uint32_t> words = MessageList("all_reduce/flat/8", rank);   // empty: no such name, or no such rank
//
// all_reduce/flat: everybody sends its whole buffer to everybody, and adds in the order of the ranks. One round.
// all_reduce/direct: chunk c goes to rank c, which adds in the order of the ranks and sends the sum to all. Two rounds.
// reduce_scatter/direct and all_gather/direct: the two halves of all_reduce/direct.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxcomm {

// What one rank does, encoded as described in messages.h. Takes time in proportion to it.
std::vector<uint32_t> MessageList(std::string_view name, uint32_t rank);

}  // namespace jaxcomm
