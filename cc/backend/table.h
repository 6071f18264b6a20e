// The functions that carry jaxlib's collectives: the core fills the table, the library that jaxlib loads calls it.
//
// Functions that return int return 0, or not 0 where `error_text` then has the reason, on the same thread. Sizes are in
// bytes. A request is given to `wait` once, which releases it.
#pragma once

#include <cstdint>

namespace jaxcomm {

struct BackendTable {
  // A device asks for its communicator: `color` is the group's first device, `key` the device's rank. The error of a
  // group that is not known is that of its first call.
  int (*split)(int color, int key, void** communicator);
  void (*release)(void* communicator);
  int (*rank)(void* communicator);
  int (*size)(void* communicator);
  // `dtype` and `reduction` are those of cc/kernels/types.h. `bytes`: of the operand, and of a slice for the other two.
  int (*all_reduce)(const void* operand, void* result, int64_t bytes, int dtype, int reduction, void* communicator);
  int (*reduce_scatter)(const void* operand, void* result, int64_t bytes, int dtype, int reduction, void* communicator);
  int (*all_gather)(const void* operand, void* result, int64_t bytes, void* communicator);
  // `name`: of the collective that the message is part of.
  int (*send)(const void* message, int64_t bytes, int peer, const char* name, void* communicator, void** request);
  int (*receive)(void* message, int64_t bytes, int peer, const char* name, void* communicator, void** request);
  int (*wait)(void* request);
  // One part of an all-to-all, as XLA makes them: with each other rank in turn, to the next rank first.
  int (*exchange)(const void* sent, int to, void* received, int from, int64_t bytes, void* communicator);
  // Cut to what fits, with a zero at its end; returns its length.
  int (*error_text)(char* text, int capacity);
};

}  // namespace jaxcomm
