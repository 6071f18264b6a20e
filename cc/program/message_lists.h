// The messages of collectives that follow no plan, which every process can make from their names.
//
//   std::vector<uint32_t> words = MessageList("all_reduce/flat/8", rank);   // empty: no such name, or no such rank
//
// all_reduce/flat: everybody sends its whole buffer to everybody, and adds in the order of the ranks. One round.
// all_reduce/direct: chunk c goes to rank c, which adds in the order of the ranks and sends the sum to all. Two rounds.
// all_reduce/ring: chunks go round, are added to on the way, and go round again. 2 (n - 1) rounds, one peer at a time.
// reduce_scatter and all_gather, /direct and /ring: the two halves of these.
// broadcast/flat: rank 0 sends its whole buffer to everybody.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxcomm {

// The list of one rank, encoded as messages.h describes, in time proportional to its length.
std::vector<uint32_t> MessageList(std::string_view name, uint32_t rank);

}  // namespace jaxcomm
