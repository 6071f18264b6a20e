// As much of CUDA's runtime as the host side of the fused executor and of messages calls, on a machine that has none:
// memory of its own for each device, which only those devices and processes reach that were told to, and streams that
// are threads. Whoever copies or records on a stream waits for what is on it: copies are done and events pass at once.
//
//   fake::Machine machine(/*devices=*/4);   // one at a time; the functions below are about it
//   machine.Wait();                         // until all streams are empty
//   machine.allocated()                     // how many allocations are left
//
// Processes have machines of their own, made after they were forked.
// It takes the place of the runtime's header of this name; the kernel runs the protocol's own source (kernel.cc).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorPeerAccessAlreadyEnabled,
  cudaErrorNoDevice,
  cudaErrorNotReady
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
constexpr unsigned cudaHostAllocMapped = 1, cudaHostAllocPortable = 2, cudaStreamNonBlocking = 1,
                   cudaIpcMemLazyEnablePeerAccess = 1, cudaEventDisableTiming = 2;
struct cudaIpcMemHandle_t {
  char reserved[64];
};

namespace fake {

class Stream;

class Machine {
 public:
  explicit Machine(int devices);
  ~Machine();

  // Before anything is allocated.
  void Separate(int from, int to) { separate_.insert({from, to}); }
  void SetProcessors(int device, int processors) { processors_[device] = processors; }
  void SetClock(int device, int64_t nanoseconds) { clocks_[device] = nanoseconds; }

  // Lets no larger allocation succeed, and no other process's memory be opened.
  void LimitAllocations(size_t bytes) { limit_ = bytes; }
  void RefuseToOpen(bool refuse) { refuses_ = refuse; }

  void Wait(int device = -1);  // or of all
  size_t allocated();
  bool connected(int from, int to);
  uint64_t Now(int device) const;

  std::atomic<unsigned> blocks{0};  // of the last launch of the kernel

 private:
  friend struct Runtime;

  const int devices_;
  std::mutex mutex_;
  std::set<std::pair<int, int>> separate_, connected_;
  std::map<int, int> processors_;
  std::map<int, int64_t> clocks_;
  size_t limit_ = SIZE_MAX;
  bool refuses_ = false;
  std::map<void*, int> memory_;  // by device, -1 is the host
  struct Opened {
    void* memory;
    int times;
  };
  std::map<std::tuple<int, int, int>, Opened> opened_;  // by device, process and its file
  std::set<Stream*> streams_;
};

// The work of one stream, in order.
class Stream {
 public:
  explicit Stream(int device) : device(device) {}
  ~Stream() { Wait(); }
  void Enqueue(std::function<void()> work);
  void Wait();

  const int device;

 private:
  std::thread last_;
};

// Has passed when it is recorded, but whoever asks first finds that it has not.
struct Event {
  const int device;
  bool asked = false;
};

Machine& TheMachine();

}  // namespace fake

using cudaStream_t = fake::Stream*;
using cudaEvent_t = fake::Event*;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* memory);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
