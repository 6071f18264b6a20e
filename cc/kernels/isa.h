// The instruction set that this processor's kernels are taken from.
#pragma once

namespace jaxcomm {

enum class Isa { kPlain, kAvx2, kAvx512, kNeon };

Isa ThisIsa();

// "avx512", "avx2", "neon" or "plain".
const char* KernelIsa();

}  // namespace jaxcomm
