// The instruction set of the kernels that run on this processor.
//
//   ReduceFn FindReduce(DType dtype, Reduction reduction) { return JAXCOMM_OF_THIS_ISA(Find, dtype, reduction); }
#pragma once

namespace jaxcomm {

enum class Isa { kPlain, kAvx2, kAvx512, kNeon };

Isa ThisIsa();

// Returns "avx512", "avx2", "neon" or "plain".
const char* KernelIsa();

}  // namespace jaxcomm

// Calls the function `name` in the namespace of this processor's instruction set.
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
