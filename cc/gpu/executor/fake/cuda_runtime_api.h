// Fakes the CUDA functions that the host side calls. Needs no GPU: memory is the host's, and streams are threads.
//
//   fake::Machine machine(/*devices=*/4);   // the CUDA functions below use this machine; only one may exist at a time
//   machine.Wait();                         // returns when all streams are empty
//   machine.memory.size()                   // the number of allocations that were not freed
//
// This header replaces CUDA's header of the same name. The kernel runs on host threads (kernel.cc).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorPeerAccessAlreadyEnabled,
  cudaErrorNoDevice,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
constexpr unsigned cudaHostAllocMapped = 1, cudaHostAllocPortable = 2, cudaStreamNonBlocking = 1;
constexpr unsigned long long cudaEnableDefault = 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
using CUdeviceptr = unsigned long long;
enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUpointer_attribute { CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE };
enum CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

namespace fake {

// Runs the work of one stream in order.
class Stream {
 public:
  explicit Stream(int device) : device(device) {}
  ~Stream() { Wait(); }
  void Enqueue(std::function<void()> work) {
    last_ = std::thread([before = std::move(last_), work = std::move(work)]() mutable {
      if (before.joinable()) before.join();
      work();
    });
  }
  void Wait() {
    if (last_.joinable()) last_.join();
  }

  const int device;

 private:
  std::thread last_;
};

struct Machine {
  explicit Machine(int devices) : devices(devices) { the_machine = this, current_device = 0; }
  ~Machine() {
    Wait();
    the_machine = nullptr;
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    const std::set<Stream*> all = streams;
    lock.unlock();  // other threads may need the mutex during the wait
    for (Stream* stream : all) stream->Wait();
  }

  uint64_t Now(int device) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() + clocks[device]);
  }

  bool Exists(int device) const { return device >= 0 && device < devices; }

  const int devices;
  std::set<std::pair<int, int>> separate;  // (device, peer) pairs; the device cannot access the peer's memory
  std::map<int, int> processors;           // number of processors, by device; a device without an entry has two
  int64_t clocks[8] = {};                  // nanoseconds to add to the host's clock, for each device
  // The next three members are what the driver reports about any memory address.
  std::set<int> access;         // the devices that may access the memory; empty if cuMemCreate did not make the memory
  bool is_of_malloc = false;    // whether cudaMalloc made the memory
  uint64_t granted = SIZE_MAX;  // addresses above this one are mapped only for device 0

  std::atomic<unsigned> blocks{0};  // number of blocks in the kernel's last launch
  std::mutex mutex;                 // guards the members below
  std::set<std::pair<int, int>> connected;
  std::set<void*> memory;
  std::set<Stream*> streams;

  static inline Machine* the_machine = nullptr;
  static inline thread_local int current_device = 0;
  static inline thread_local cudaError_t last_error = cudaSuccess;
};

inline Machine& TheMachine() { return *Machine::the_machine; }

inline cudaError_t Fail(cudaError_t error) { return Machine::last_error = error; }

}  // namespace fake

using cudaStream_t = fake::Stream*;

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorNoDevice ? "no such device" : "invalid value";
}
inline cudaError_t cudaGetLastError() { return std::exchange(fake::Machine::last_error, cudaSuccess); }

inline cudaError_t cudaGetDevice(int* device) { return *device = fake::Machine::current_device, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) {
  if (!fake::TheMachine().Exists(device)) return fake::Fail(cudaErrorNoDevice);
  return fake::Machine::current_device = device, cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  if (!fake::TheMachine().Exists(device)) return fake::Fail(cudaErrorNoDevice);
  const auto found = fake::TheMachine().processors.find(device);
  return *value = found == fake::TheMachine().processors.end() ? 2 : found->second, cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return fake::TheMachine().Wait(), cudaSuccess; }

inline cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (fake::TheMachine().separate.count({fake::Machine::current_device, peer}) > 0)
    return fake::Fail(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> lock(fake::TheMachine().mutex);
  const bool is_new = fake::TheMachine().connected.insert({fake::Machine::current_device, peer}).second;
  return is_new ? cudaSuccess : fake::Fail(cudaErrorPeerAccessAlreadyEnabled);
}

inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::memset(std::malloc(bytes), 0xa5, bytes);
  std::lock_guard<std::mutex> lock(fake::TheMachine().mutex);
  return fake::TheMachine().memory.insert(*memory), cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::lock_guard<std::mutex> lock(fake::TheMachine().mutex);
  if (fake::TheMachine().memory.erase(memory) > 0) std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return std::memset(memory, value, bytes), cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new fake::Stream(fake::Machine::current_device);
  std::lock_guard<std::mutex> lock(fake::TheMachine().mutex);
  return fake::TheMachine().streams.insert(*stream), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return stream->Wait(), cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_lock<std::mutex> lock(fake::TheMachine().mutex);
  fake::TheMachine().streams.erase(stream);
  lock.unlock();
  return delete stream, cudaSuccess;
}

inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult*) {
  if (name == std::string("cuMemGetAccess")) {
    *function = reinterpret_cast<void*>(+[](unsigned long long* flags, const CUmemLocation* location, CUdeviceptr at) {
      const fake::Machine& machine = fake::TheMachine();
      const bool may = machine.access.count(location->id) > 0 && (at <= machine.granted || location->id == 0);
      *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
      return machine.access.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    });
  } else {
    *function = reinterpret_cast<void*>(+[](void* value, CUpointer_attribute, CUdeviceptr) {
      return *static_cast<int*>(value) = fake::TheMachine().is_of_malloc, CUDA_SUCCESS;
    });
  }
  return cudaSuccess;
}
