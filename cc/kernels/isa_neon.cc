// This file is compiled for NEON, and is empty on architectures without it.
#if defined(__aarch64__)
#define JAXCOMM_ISA neon
#define JAXCOMM_VECTOR_BYTES 16
#include "cc/kernels/importance_inl.h"
#include "cc/kernels/reduce_inl.h"
#endif
