#include "cc/kernels/importance.h"

#include "cc/kernels/isa.h"

namespace jaxcomm {

ImportanceFn FindImportance(DType dtype) { return JAXCOMM_OF_THIS_ISA(FindImportance, dtype); }
ScaleFn FindScale(DType dtype) { return JAXCOMM_OF_THIS_ISA(FindScale, dtype); }

}  // namespace jaxcomm
