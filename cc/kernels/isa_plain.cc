// This file is compiled for the oldest processor of the architecture.
#define JAXCOMM_ISA plain
#define JAXCOMM_VECTOR_BYTES 16
#include "cc/kernels/importance_inl.h"
#include "cc/kernels/reduce_inl.h"
