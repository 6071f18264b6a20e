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

// An error: operands and results do not fit together, or the kernels lack an element type. In a reduce-scatter and an
// all-gather over `ranks` ranks a leaf's bytes are those of one slice.
Status ReadBuffers(const std::string& name, Kind kind, size_t ranks, const xla::ffi::RemainingArgs& args,
                   const xla::ffi::RemainingRets& rets, std::vector<Leaf>& leaves, Buffers& buffers);

// Copies the operands to the results, for the only rank of a group.
void HandOn(const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets);

}  // namespace jaxcomm
