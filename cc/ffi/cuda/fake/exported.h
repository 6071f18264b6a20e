// What Python looks up in the shared object for messages, for tests that take its place.
#pragma once

#include <cstdint>

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxcommMessagesPrepare(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxcommMessagesLent(XLA_FFI_CallFrame* frame);
int64_t jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                          const char* modules, const char* ids, const uint32_t* partitions, uint32_t num_partitions,
                          const char* board, double deadline_s, char* error, int64_t size);
int64_t jaxcomm_nccl_borrow(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                            const char* board, char* error, int64_t size);
int64_t jaxcomm_nccl_without(const char* group, int device, const uint32_t* gone, uint32_t num_gone, const char* board,
                             char* error, int64_t size);
void jaxcomm_nccl_leave(const char* group, int device);
void jaxcomm_nccl_set_deadline(double seconds);
void jaxcomm_nccl_lender(void* lend);
int64_t jaxcomm_register_messages(const char* name, const char* words, int64_t bytes, char* error, int64_t size);
}
