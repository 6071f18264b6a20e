// How a rank's buffers relate to the chunks of what it executes: an allreduce works in place on the whole buffer; a
// reduce-scatter reads slice c of its operand for chunk c and stores its own slice as the result; an all-gather reads
// its operand and stores slice c of the result.
#pragma once

namespace jaxcomm {

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

}  // namespace jaxcomm
