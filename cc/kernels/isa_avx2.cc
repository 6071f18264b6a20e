// This file is compiled for AVX2, and is empty on architectures without it.
#if defined(__x86_64__)
#define JAXCOMM_ISA avx2
#define JAXCOMM_VECTOR_BYTES 32
#include "cc/kernels/importance_inl.h"
#include "cc/kernels/reduce_inl.h"
#endif
