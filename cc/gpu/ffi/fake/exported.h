// What Python looks up in the shared object for messages, for tests that take its place.
#pragma once

#include <cstdint>

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame);
int jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank, const char* id,
                      const char* board, char* error, int64_t capacity);
int jaxcomm_nccl_set_deadline(double seconds, char* error, int64_t capacity);
int jaxcomm_register_messages(const char* name, const void* bytes, int64_t num_bytes, char* error, int64_t capacity);
}
