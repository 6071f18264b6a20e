// The instruction set that this processor's kernels are taken from.
//
//   ReduceFn FindReduce(DType dtype, Reduction reduction) { return JAXCOMM_OF_THIS_ISA(Find, dtype, reduction); }
#pragma once

namespace jaxcomm {

enum class Isa { kPlain, kAvx2, kAvx512, kNeon };

Isa ThisIsa();

// "avx512", "avx2", "neon" or "plain".
const char* KernelIsa();

}  // namespace jaxcomm

// Calls the function of this name in the namespace of the instruction set.
#if defined(__x86_64__)
#define JAXCOMM_OF_THIS_ISA(name, ...)                   \
  (ThisIsa() == Isa::kAvx512 ? avx512::name(__VA_ARGS__) \
   : ThisIsa() == Isa::kAvx2 ? avx2::name(__VA_ARGS__)   \
                             : plain::name(__VA_ARGS__))
#elif defined(__aarch64__)
#define JAXCOMM_OF_THIS_ISA(name, ...) (ThisIsa() == Isa::kNeon ? neon::name(__VA_ARGS__) : plain::name(__VA_ARGS__))
#else
#define JAXCOMM_OF_THIS_ISA(name, ...) plain::name(__VA_ARGS__)
#endif
