// The floating-point mode in which XLA computes on CPUs. Denormal operands and results become zero, and results are
// rounded to nearest. A thread inherits the mode of its creator, so the results of a thread that Python creates could
// differ in some bits from the results of XLA's threads.
//
//   const XlaFloatMode mode;   // sets the mode of this thread until the end of the scope
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jaxcomm {

class XlaFloatMode {
 public:
  XlaFloatMode() : before_(Read()) { Write((before_ & ~kRounding) | kFlush); }
  ~XlaFloatMode() { Write(before_); }
  XlaFloatMode(const XlaFloatMode&) = delete;
  XlaFloatMode& operator=(const XlaFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8000 | 0x0040;  // MXCSR: FTZ, DAZ
  static constexpr uint64_t kRounding = 0x6000;
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;  // FPCR: FZ
  static constexpr uint64_t kRounding = 3 << 22;
  static uint64_t Read() {
    uint64_t mode;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Write(uint64_t mode) { __asm__ __volatile__("msr fpcr, %0" : : "r"(mode)); }
#else
  // XLA sets no mode on other architectures.
  static constexpr uint64_t kFlush = 0, kRounding = 0;
  static uint64_t Read() { return 0; }
  static void Write(uint64_t) {}
#endif

  const uint64_t before_;
};

}  // namespace jaxcomm
