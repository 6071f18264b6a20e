// The C functions by which Python connects the processes of a job; c_function.h says how they end.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/ffi/c_function.h"
#include "cc/ffi/job.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {

// The list of one rank; those of all ranks have one name.
JAXCOMM_EXPORT int jaxcomm_register_messages(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                             int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? TheMessages().Add(name, words.value().data(), words.value().size()) : words.status();
  });
}

JAXCOMM_EXPORT int jaxcomm_job_open(int64_t process, int64_t processes, char* error, int64_t capacity) {
  return Answer(error, capacity,
                [&] { return TheJob().Open(static_cast<uint32_t>(process), static_cast<uint32_t>(processes)); });
}

// The descriptor of this process's shared-memory file, which stays ours, and the number that it bears.
JAXCOMM_EXPORT int jaxcomm_job_shm_file(int* fd, uint64_t* nonce, char* error, int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    const Result<ShmTransport*> shm = TheJob().Shm();
    if (!shm.ok()) return shm.status();
    *fd = shm.value()->fd();
    *nonce = shm.value()->nonce();
    return Status();
  });
}

JAXCOMM_EXPORT int jaxcomm_job_add_shm(int64_t process, int fd, uint64_t nonce, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { return TheJob().AddShm(static_cast<uint32_t>(process), nonce, fd); });
}

JAXCOMM_EXPORT int jaxcomm_job_add_tcp(int64_t process, int socket, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { return TheJob().AddTcp(static_cast<uint32_t>(process), socket); });
}

JAXCOMM_EXPORT int jaxcomm_job_start(char* error, int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    Status status = TheJob().Start();
    if (status.ok()) TheExecutor().Connect(TheJob().transport());
    return status;
  });
}

JAXCOMM_EXPORT int jaxcomm_job_close(char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    TheJob().Close();
    return Status();
  });
}

}  // namespace jaxcomm
