// The library that jaxlib loads in place of an MPI library. It defines the MPI functions that XLA calls, and the
// constants that XLA passes to these functions. The functions call jaxcomm's core through a table of functions, which
// the core fills. unused_names.py writes the library's other source file, which defines the names that jaxlib looks up
// but never calls.
//
// `import jaxlib` loads this library into every process, so the library contains only these two files. When jaxlib
// creates its CPU client, jaxlib calls MPIABI_Init_thread, which runs jaxcomm.backend.start. That Python function
// passes the core's table to this library.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "cc/backend/table.h"

#define JAXCOMM_ABI extern "C" __attribute__((visibility("default")))

namespace {

using jaxcomm::BackendTable;

// The values of handles are arbitrary but distinct. A type's handle is kFirstType plus the type's number in DType.
constexpr uintptr_t kWorld = 1, kFirstType = 0x100, kByte = 0x1FF, kFirstReduction = 0x200;
constexpr int kErrorChars = 512;  // the size of XLA's buffer for error texts

const BackendTable* table = nullptr;

// Whether the thread's latest call had a negative count. XLA truncates counts of elements to 32 bits, and only a
// negative count reveals the truncation.
thread_local bool count_is_negative = false;

int64_t BytesOf(int count, uintptr_t type) {
  static constexpr int64_t kWidths[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};  // by DType: bytes per element
  return count * (type == kByte ? 1 : kWidths[type - kFirstType]);
}

int DTypeOf(uintptr_t type) { return static_cast<int>(type - kFirstType); }

bool Refuses(int count) {
  count_is_negative = count < 0;
  return count_is_negative || table == nullptr;
}

void* Communicator(uintptr_t handle) { return reinterpret_cast<void*>(handle); }

}  // namespace

// jaxlib contains a copy of MPItrampoline, which reads these versions first. In jaxlib 0.10.2 the copy requires ABI 2.9
// or a later minor version.
JAXCOMM_ABI const int mpiwrapper_version_major = 0, mpiwrapper_version_minor = 0, mpiwrapper_version_patch = 1;
JAXCOMM_ABI const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
JAXCOMM_ABI void mpiwrapper_export_fortran_constants_() {}

#define JAXCOMM_INT(name, value) JAXCOMM_ABI const int name = value
#define JAXCOMM_HANDLE(name, value) JAXCOMM_ABI const uintptr_t name = value

JAXCOMM_INT(MPIABI_SUCCESS, 0);
JAXCOMM_INT(MPIABI_UNDEFINED, -32766);
JAXCOMM_INT(MPIABI_THREAD_SINGLE, 0);
JAXCOMM_INT(MPIABI_THREAD_FUNNELED, 1);
JAXCOMM_INT(MPIABI_THREAD_SERIALIZED, 2);
JAXCOMM_INT(MPIABI_THREAD_MULTIPLE, 3);
JAXCOMM_HANDLE(MPIABI_COMM_WORLD, kWorld);
JAXCOMM_HANDLE(MPIABI_COMM_NULL, 0);
JAXCOMM_HANDLE(MPIABI_REQUEST_NULL, 0);
JAXCOMM_HANDLE(MPIABI_STATUS_IGNORE, 0);
JAXCOMM_HANDLE(MPIABI_BYTE, kByte);
JAXCOMM_HANDLE(MPIABI_INT8_T, kFirstType + 0);
JAXCOMM_HANDLE(MPIABI_INT16_T, kFirstType + 1);
JAXCOMM_HANDLE(MPIABI_INT32_T, kFirstType + 2);
JAXCOMM_HANDLE(MPIABI_INT64_T, kFirstType + 3);
JAXCOMM_HANDLE(MPIABI_UINT8_T, kFirstType + 4);
JAXCOMM_HANDLE(MPIABI_UINT16_T, kFirstType + 5);
JAXCOMM_HANDLE(MPIABI_UINT32_T, kFirstType + 6);
JAXCOMM_HANDLE(MPIABI_UINT64_T, kFirstType + 7);
JAXCOMM_HANDLE(MPIABI_FLOAT, kFirstType + 10);
JAXCOMM_HANDLE(MPIABI_DOUBLE, kFirstType + 11);
JAXCOMM_HANDLE(MPIABI_C_COMPLEX, kFirstType + 12);
JAXCOMM_HANDLE(MPIABI_C_DOUBLE_COMPLEX, kFirstType + 13);
// These handles follow the order of the enum Reduction.
JAXCOMM_HANDLE(MPIABI_SUM, kFirstReduction + 0);
JAXCOMM_HANDLE(MPIABI_MAX, kFirstReduction + 1);
JAXCOMM_HANDLE(MPIABI_MIN, kFirstReduction + 2);
JAXCOMM_HANDLE(MPIABI_PROD, kFirstReduction + 3);

// Sets the table of the core's functions. The table lives until the process terminates.
JAXCOMM_ABI void jaxcomm_backend_take(const BackendTable* filled) { table = filled; }

// The functions that unused_names.py generates call this function. It prints the caller's name and fails.
JAXCOMM_ABI int jaxcomm_backend_unused(const char* name) {
  std::fprintf(stderr, "jaxcomm: jaxlib calls %s, which this version of jaxcomm does not support.\n", name);
  return 1;
}

// The thread that creates the CPU client calls this function while it holds Python's GIL.
JAXCOMM_ABI int MPIABI_Init_thread(int*, char***, int, int* provided) {
  if (provided != nullptr) *provided = MPIABI_THREAD_MULTIPLE;
  const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  return run == nullptr ? 1 : run("__import__('jaxcomm.backend.start', fromlist=['start']).start()");
}

JAXCOMM_ABI int MPIABI_Finalize() { return 0; }

JAXCOMM_ABI int MPIABI_Get_library_version(char* text, int* length) {
  *length = std::snprintf(text, kErrorChars, "jaxcomm");
  return 0;
}

// XLA creates communicators only on MPI's main thread. In jaxcomm, any thread may create communicators, so this
// function reports every thread as the main thread.
JAXCOMM_ABI int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return 0;
}

JAXCOMM_ABI int MPIABI_Error_string(int, char* text, int* length) {
  const char* const reason =
      count_is_negative ? "a buffer has 2^31 elements or more, or a message 2 GiB or more: jaxlib passes counts of 32 "
                          "bits.\n  Cure: split the array."
                        : "jaxcomm.backend did not start; see its earlier output.";
  // jaxcomm.errors recognises errors of jaxcomm by this prefix.
  const int before = std::snprintf(text, kErrorChars, "jaxcomm: ");
  char* const rest = text + before;
  *length = before + (count_is_negative || table == nullptr ? std::snprintf(rest, kErrorChars - before, "%s", reason)
                                                            : table->error_text(rest, kErrorChars - before));
  return 0;
}

JAXCOMM_ABI int MPIABI_Comm_split(uintptr_t, int color, int key, uintptr_t* communicator) {
  void* made = nullptr;
  const int error = table == nullptr ? 1 : table->split(color, key, &made);
  *communicator = reinterpret_cast<uintptr_t>(made);
  return error;
}

JAXCOMM_ABI int MPIABI_Comm_free(uintptr_t* communicator) {
  if (*communicator > kWorld) table->release(Communicator(*communicator));
  *communicator = 0;
  return 0;
}

// In the world communicator, every process reports rank 0 and size 1. XLA only logs these two numbers.
JAXCOMM_ABI int MPIABI_Comm_rank(uintptr_t communicator, int* rank) {
  *rank = communicator > kWorld ? table->rank(Communicator(communicator)) : 0;
  return 0;
}

JAXCOMM_ABI int MPIABI_Comm_size(uintptr_t communicator, int* size) {
  *size = communicator > kWorld ? table->size(Communicator(communicator)) : 1;
  return 0;
}

JAXCOMM_ABI int MPIABI_Allreduce(const void* operand, void* result, int count, uintptr_t type, uintptr_t reduction,
                                 uintptr_t communicator) {
  if (Refuses(count)) return 1;
  return table->all_reduce(operand, result, BytesOf(count, type), DTypeOf(type),
                           static_cast<int>(reduction - kFirstReduction), Communicator(communicator));
}

// All entries of `counts` are equal.
JAXCOMM_ABI int MPIABI_Reduce_scatter(const void* operand, void* result, const int* counts, uintptr_t type,
                                      uintptr_t reduction, uintptr_t communicator) {
  if (Refuses(counts[0])) return 1;
  return table->reduce_scatter(operand, result, BytesOf(counts[0], type), DTypeOf(type),
                               static_cast<int>(reduction - kFirstReduction), Communicator(communicator));
}

JAXCOMM_ABI int MPIABI_Allgather(const void* operand, int count, uintptr_t type, void* result, int, uintptr_t,
                                 uintptr_t communicator) {
  if (Refuses(count)) return 1;
  return table->all_gather(operand, result, BytesOf(count, type), Communicator(communicator));
}

JAXCOMM_ABI int MPIABI_Isend(const void* message, int count, uintptr_t type, int peer, int, uintptr_t communicator,
                             uintptr_t* request) {
  if (Refuses(count)) return 1;
  void* begun = nullptr;
  const int error =
      table->send(message, BytesOf(count, type), peer, "collective-permute", Communicator(communicator), &begun);
  *request = reinterpret_cast<uintptr_t>(begun);
  return error;
}

JAXCOMM_ABI int MPIABI_Irecv(void* message, int count, uintptr_t type, int peer, int, uintptr_t communicator,
                             uintptr_t* request) {
  if (Refuses(count)) return 1;
  void* begun = nullptr;
  const int error =
      table->receive(message, BytesOf(count, type), peer, "collective-permute", Communicator(communicator), &begun);
  *request = reinterpret_cast<uintptr_t>(begun);
  return error;
}

JAXCOMM_ABI int MPIABI_Wait(uintptr_t* request, void*) {
  void* const waited = reinterpret_cast<void*>(*request);
  *request = 0;
  count_is_negative = false;
  return waited == nullptr ? 0 : table->wait(waited);
}

JAXCOMM_ABI int MPIABI_Sendrecv(const void* sent, int sent_count, uintptr_t sent_type, int to, int, void* received,
                                int received_count, uintptr_t, int from, int, uintptr_t communicator, void*) {
  if (Refuses(sent_count) || Refuses(received_count)) return 1;
  return table->exchange(sent, to, received, from, BytesOf(sent_count, sent_type), Communicator(communicator));
}
