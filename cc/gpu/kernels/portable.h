// Compiles one source as device functions for nvcc and as plain functions for tests without a GPU.
//
// A kernel only calls its body, which is a function of a thread's grid index. A test calls the body for every thread in
// turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define JAXCOMM_PORTABLE __host__ __device__ __forceinline__
#else
#define JAXCOMM_PORTABLE inline
#endif

#ifdef __CUDA_ARCH__
#define JAXCOMM_UNROLL _Pragma("unroll")
#define JAXCOMM_UNROLL_4 _Pragma("unroll 4")
#else
#define JAXCOMM_UNROLL
#define JAXCOMM_UNROLL_4
#endif

namespace jaxcomm::cuda {

// A thread's index, and the number of threads that share the work.
struct GridThread {
  size_t thread, threads;
};

template <typename To, typename From>
JAXCOMM_PORTABLE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Number of bytes that one instruction moves.
constexpr size_t kPackBytes = 16;

template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr size_t kElements = kPackBytes / sizeof(T);
  T elements[kElements];
};

// LoadPack and StorePack require an address that is aligned to 16 bytes.
template <typename T>
JAXCOMM_PORTABLE Pack<T> LoadPack(const T* from) {
#ifdef __CUDA_ARCH__
  return BitCast<Pack<T>>(*reinterpret_cast<const uint4*>(from));
#else
  Pack<T> pack;
  memcpy(&pack, from, sizeof(pack));
  return pack;
#endif
}

template <typename T>
JAXCOMM_PORTABLE void StorePack(const Pack<T>& pack, T* to) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<uint4*>(to) = BitCast<uint4>(pack);
#else
  memcpy(to, &pack, sizeof(pack));
#endif
}

inline bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kPackBytes == 0; }

}  // namespace jaxcomm::cuda
