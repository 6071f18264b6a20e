#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "cc/gpu/executor/fake/shared_memory.h"

namespace fake {
namespace {

Machine* the_machine = nullptr;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

Machine& TheMachine() { return *the_machine; }

Machine::Machine(int devices) : devices_(devices) {
  the_machine = this;
  current_device = 0;
}

Machine::~Machine() {
  Wait();
  the_machine = nullptr;
}

void Machine::Wait(int device) {
  std::vector<Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);  // another device's may end meanwhile
    std::copy_if(streams_.begin(), streams_.end(), std::back_inserter(streams),
                 [device](const Stream* stream) { return device < 0 || stream->device == device; });
  }
  for (Stream* stream : streams) stream->Wait();
}

size_t Machine::allocated() {
  std::lock_guard<std::mutex> lock(mutex_);
  return memory_.size();
}

bool Machine::connected(int from, int to) {
  std::lock_guard<std::mutex> lock(mutex_);
  return from == to || connected_.count({from, to}) > 0;
}

uint64_t Machine::Now(int device) const {
  const auto clock = clocks_.find(device);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() +
                               (clock == clocks_.end() ? 0 : clock->second));
}

void Stream::Enqueue(std::function<void()> work) {
  last_ = std::thread([before = std::move(last_), work = std::move(work)]() mutable {
    if (before.joinable()) before.join();
    work();
  });
}

void Stream::Wait() {
  if (last_.joinable()) last_.join();
}

// What the functions of the runtime do; each returns its error, which is also kept as the last one.
struct Runtime {
  static cudaError_t Fail(cudaError_t error) { return last_error = error; }

  static cudaError_t Allocate(void** memory, size_t bytes, int device) {
    if (bytes > TheMachine().limit_) return Fail(cudaErrorMemoryAllocation);
    *memory = device < 0 ? std::malloc(bytes) : SharedMemory::Allocate(bytes);
    std::memset(*memory, 0xa5, bytes);
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    TheMachine().memory_[*memory] = device;
    return cudaSuccess;
  }

  static cudaError_t Free(void* memory) {
    if (memory == nullptr) return cudaSuccess;
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    const auto found = TheMachine().memory_.find(memory);
    if (found == TheMachine().memory_.end()) return Fail(cudaErrorInvalidValue);
    if (found->second < 0) {
      std::free(memory);
    } else {
      SharedMemory::Free(static_cast<std::byte*>(memory));
    }
    TheMachine().memory_.erase(found);
    return cudaSuccess;
  }

  static cudaError_t GetHandle(cudaIpcMemHandle_t* handle, void* memory) {
    const SharedMemory::Handle its = SharedMemory::HandleOf(static_cast<std::byte*>(memory));
    static_assert(sizeof(its) <= sizeof(*handle));
    std::memcpy(handle, &its, sizeof(its));
    return cudaSuccess;
  }

  // As with CUDA, not in its own process; what is open already is counted, and stays where it is.
  static cudaError_t Open(void** memory, const cudaIpcMemHandle_t& handle) {
    SharedMemory::Handle its;
    std::memcpy(&its, &handle, sizeof(its));
    if (its.process == getpid() || TheMachine().refuses_) return Fail(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    auto& opened = TheMachine().opened_[{current_device, its.process, its.file}];
    if (opened.times == 0) opened.memory = SharedMemory::Open(its);
    if (opened.memory == nullptr) return Fail(cudaErrorInvalidValue);
    ++opened.times;
    return *memory = opened.memory, cudaSuccess;
  }

  static cudaError_t Close(void* memory) {
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    auto& all = TheMachine().opened_;
    const auto found = std::find_if(all.begin(), all.end(), [memory](const auto& each) {
      return std::get<0>(each.first) == current_device && each.second.memory == memory;
    });
    if (found == all.end()) return Fail(cudaErrorInvalidValue);
    if (--found->second.times > 0) return cudaSuccess;
    SharedMemory::Close(static_cast<std::byte*>(memory));
    all.erase(found);
    return cudaSuccess;
  }

  static int Processors(int device) {
    const auto it = TheMachine().processors_.find(device);
    return it == TheMachine().processors_.end() ? 2 : it->second;
  }

  static bool Exists(int device) { return device >= 0 && device < TheMachine().devices_; }

  static bool Separate(int from, int to) { return TheMachine().separate_.count({from, to}) > 0; }

  static cudaError_t Connect(int from, int to) {
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    if (Separate(from, to)) return Fail(cudaErrorInvalidValue);
    return TheMachine().connected_.insert({from, to}).second ? cudaSuccess : Fail(cudaErrorPeerAccessAlreadyEnabled);
  }

  static void Add(Stream* stream) {
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    TheMachine().streams_.insert(stream);
  }

  static void Remove(Stream* stream) {
    std::lock_guard<std::mutex> lock(TheMachine().mutex_);
    TheMachine().streams_.erase(stream);
  }
};

}  // namespace fake

using fake::Runtime;

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                 ? "no error"
         : error == cudaErrorNoDevice         ? "no such device"
         : error == cudaErrorMemoryAllocation ? "out of memory"
                                              : "invalid value";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = fake::last_error;
  fake::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDevice(int* device) { return *device = fake::current_device, cudaSuccess; }

cudaError_t cudaSetDevice(int device) {
  if (!Runtime::Exists(device)) return Runtime::Fail(cudaErrorNoDevice);
  return fake::current_device = device, cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  if (!Runtime::Exists(device)) return Runtime::Fail(cudaErrorNoDevice);
  return *value = Runtime::Processors(device), cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return *can = device != peer && !Runtime::Separate(device, peer), cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) { return Runtime::Connect(fake::current_device, peer); }
cudaError_t cudaDeviceSynchronize() { return fake::TheMachine().Wait(fake::current_device), cudaSuccess; }
cudaError_t cudaMalloc(void** memory, size_t bytes) { return Runtime::Allocate(memory, bytes, fake::current_device); }
cudaError_t cudaFree(void* memory) { return Runtime::Free(memory); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return Runtime::Allocate(memory, bytes, -1); }
cudaError_t cudaFreeHost(void* memory) { return Runtime::Free(memory); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  stream->Wait();
  return std::memcpy(to, from, bytes), cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return std::memset(memory, value, bytes), cudaSuccess; }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) { return Runtime::GetHandle(handle, memory); }
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  return Runtime::Open(memory, handle);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return Runtime::Close(memory); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new fake::Stream(fake::current_device);
  Runtime::Add(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return stream->Wait(), cudaSuccess; }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Runtime::Remove(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) { return *device = stream->device, cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new fake::Event{fake::current_device}, cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return Runtime::Fail(cudaErrorInvalidValue);
  return stream->Wait(), cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return std::exchange(event->asked, true) ? cudaSuccess : Runtime::Fail(cudaErrorNotReady);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
