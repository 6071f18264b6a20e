// The fake libnccl's windows: memory of this process, which all ranks reach, also its own, at another address than it
// was allocated at. NCCL 2.28 does not say where.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "cc/nccl/fake/fake.h"
#include "cc/nccl/fake/ranks.h"

using namespace jaxcomm::nccl;

FAKE(void) fake_without(const char* function) {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  TheFake().without.insert(function);
}

FAKE(int) fake_memory() {
  std::lock_guard<std::mutex> lock(TheFake().mutex);
  return static_cast<int>(TheFake().memory.size());
}

FAKE(Outcome) ncclMemAlloc(void** memory, size_t bytes) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (const Outcome told = Told(fake, "ncclMemAlloc"); told != kSuccess) return told;
  const int file = memfd_create("window", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  const auto map = [&] { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); };
  *memory = map();
  fake.memory[*memory] = {bytes, map()};
  close(file);
  return kSuccess;
}

FAKE(Outcome) ncclMemFree(void* memory) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  const auto found = fake.memory.find(memory);
  if (found == fake.memory.end()) return kInvalidArgument;
  munmap(found->second.in_window, found->second.bytes);
  munmap(memory, found->second.bytes);
  fake.memory.erase(found);
  return kSuccess;
}

FAKE(Outcome) ncclCommWindowRegister(FakeComm* comm, void* memory, size_t bytes, FakeWindow** window, int flags) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  *window = nullptr;
  if (flags != kSymmetric || comm->revoked || !comm->ready() || fake.memory.count(memory) == 0) return kInvalidArgument;
  Record(fake, *comm, "register " + std::to_string(bytes));
  if (const Outcome told = Told(fake, "ncclCommWindowRegister"); told != kSuccess) return told;
  if (fake.without.count("ncclCommWindowRegister") > 0) return kSuccess;
  std::shared_ptr<FakeWindow>& shared = fake.windows[comm->name + "|" + std::to_string(comm->windows++)];
  if (!shared) shared = std::make_shared<FakeWindow>(FakeWindow{static_cast<size_t>(comm->ranks), {}});
  if (fake.lost.count(comm->world_rank) == 0) shared->memory[comm->rank()] = fake.memory[memory].in_window;
  comm->window = shared;
  comm->window_handle = window;
  return kInProgress;
}

FAKE(Outcome) ncclCommWindowDeregister(FakeComm* comm, FakeWindow* window) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (fake.live.count(comm) == 0 || window == nullptr) return kInvalidArgument;
  Record(fake, *comm, "deregister");
  return kSuccess;
}

#ifndef JAXCOMM_FAKE_OLD
FAKE(Outcome) ncclGetPeerDevicePointer(FakeWindow* window, size_t offset, int rank, void** pointer) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (window->memory.count(rank) == 0) return kInvalidArgument;
  if (const Outcome told = Told(fake, "ncclGetPeerDevicePointer"); told != kSuccess) return told;
  const bool none = fake.without.count("ncclGetPeerDevicePointer") > 0;
  *pointer = none ? nullptr : static_cast<char*>(window->memory[rank]) + offset;
  return kSuccess;
}

// It reaches only rank 0: there is no switch.
FAKE(Outcome) ncclGetLsaMultimemDevicePointer(FakeWindow* window, size_t offset, void** pointer) {
  Fake& fake = TheFake();
  std::lock_guard<std::mutex> lock(fake.mutex);
  if (const Outcome told = Told(fake, "ncclGetLsaMultimemDevicePointer"); told != kSuccess) return told;
  const bool none = fake.without.count("ncclGetLsaMultimemDevicePointer") > 0;
  *pointer = none ? nullptr : static_cast<char*>(window->memory[0]) + offset;
  return kSuccess;
}
#endif
