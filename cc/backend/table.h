// The table of the functions that run jaxlib's collectives. The core (ffi/api/backend.cc) fills the table.
// mpi_functions.cc, the library that jaxlib loads, calls these functions.
//
// Functions that may fail return 0 on success. Otherwise `error_text`, called on the same thread, gives the reason.
// Sizes are in bytes. `wait` releases its request, so each request is passed to `wait` once.
#pragma once

#include <cstdint>

namespace jaxcomm {

struct BackendTable {
  // Creates the communicator of a device. `color` is the first device of the group, and `key` is the device's rank. If
  // jaxcomm does not know the group, `split` succeeds, but the communicator's first call fails.
  int (*split)(int color, int key, void** communicator);
  void (*release)(void* communicator);
  int (*rank)(void* communicator);
  int (*size)(void* communicator);
  // `dtype` and `reduction` are values of the enums DType and Reduction in cc/kernels/types.h. `bytes` is the size of
  // the operand for `all_reduce`, and of one slice for `reduce_scatter` and `all_gather`.
  int (*all_reduce)(const void* operand, void* result, int64_t bytes, int dtype, int reduction, void* communicator);
  int (*reduce_scatter)(const void* operand, void* result, int64_t bytes, int dtype, int reduction, void* communicator);
  int (*all_gather)(const void* operand, void* result, int64_t bytes, void* communicator);
  // `name` is the name of the collective to which the message belongs.
  int (*send)(const void* message, int64_t bytes, int peer, const char* name, void* communicator, void** request);
  int (*receive)(void* message, int64_t bytes, int peer, const char* name, void* communicator, void** request);
  int (*wait)(void* request);
  // One step of an all-to-all: sends a slice to rank `to`, and receives a slice from rank `from`. XLA makes one such
  // step for each other rank.
  int (*exchange)(const void* sent, int to, void* received, int from, int64_t bytes, void* communicator);
  // Copies the error text, zero-terminated and cut to `capacity`. Returns the length of the copy.
  int (*error_text)(char* text, int capacity);
};

}  // namespace jaxcomm
