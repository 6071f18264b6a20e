// The kinds of collectives differ in how a rank's buffers relate to the chunks of its schedule. An all-reduce works in
// place on the whole buffer. A reduce-scatter reads slice c of its operand for chunk c, and its result is the rank's
// own slice. An all-gather reads its operand as the rank's own slice, and stores chunk c as slice c of its result. An
// all-to-all has no schedule: its ranks only exchange operands (operand_exchange.h). It has one operand and one result
// for each other rank.
#pragma once

namespace jaxcomm {

enum class Kind { kAllReduce, kReduceScatter, kAllGather, kAllToAll };

}  // namespace jaxcomm
