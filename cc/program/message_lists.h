// The lists of messages for collectives that follow no plan. Every process can make such a list from the list's name.
//
//   std::vector<uint32_t> words = MessageList("all_reduce/flat/8", rank);   // empty: no such name, or no such rank
//
// - all_reduce/flat: each rank sends its whole buffer to all others, and adds all buffers in rank order. One round.
// - all_reduce/direct: all ranks send chunk c to rank c. Rank c adds the chunks in rank order and sends the sum to all
//   ranks. Two rounds.
// - all_reduce/ring: the chunks pass around the ring twice. They are added the first time and copied the second time.
//   2 (n - 1) rounds for n ranks; in each round, a rank sends to one peer.
// - reduce_scatter/direct and reduce_scatter/ring: the first half of all_reduce/direct and of all_reduce/ring.
// - all_gather/direct and all_gather/ring: the second half of all_reduce/direct and of all_reduce/ring.
// - broadcast/flat: rank 0 sends its whole buffer to all other ranks. One round.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxcomm {

// Returns the list of one rank, encoded as messages.h describes. Takes time proportional to the length of the list.
std::vector<uint32_t> MessageList(std::string_view name, uint32_t rank);

// Returns whether each sum in the list is a single addition of all ranks' contributions to a chunk, in rank order.
bool AddsInRankOrder(std::string_view name);
bool IsBroadcast(std::string_view name);

}  // namespace jaxcomm
