#include "cc/kernels/reduce.h"

#include "cc/kernels/isa.h"

namespace jaxcomm {

ReduceFn FindReduce(DType dtype, Reduction reduction) { return JAXCOMM_OF_THIS_ISA(Find, dtype, reduction); }

}  // namespace jaxcomm
