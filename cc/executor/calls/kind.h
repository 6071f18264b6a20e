// The kinds of collectives differ in how a rank's buffers relate to the chunks of its schedule. An all-reduce works in
// place on the whole buffer. A reduce-scatter reads slice c of its operand for chunk c, and its result is the rank's
// own slice. An all-gather reads its operand as the rank's own slice, and stores chunk c as slice c of its result.
#pragma once

namespace jaxcomm {

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

}  // namespace jaxcomm
