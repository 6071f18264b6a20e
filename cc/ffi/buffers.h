// The operands and results of a custom call, as the executor takes them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/kind.h"
#include "cc/executor/layout.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

// Fails where operands and results do not fit together, or an element type is none of the kernels'. Of a reduce-scatter
// and an all-gather over so many ranks, a leaf's bytes are those of one slice.
Status ReadBuffers(const std::string& name, Kind kind, size_t ranks, const xla::ffi::RemainingArgs& args,
                   const xla::ffi::RemainingRets& rets, std::vector<Leaf>& leaves, Buffers& buffers);

// The operands become the results, of a rank that is alone.
void HandOn(const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets);

}  // namespace jaxcomm
