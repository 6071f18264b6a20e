// Converts the operands and results of a custom call to the executor's buffers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/buffers.h"
#include "cc/executor/calls/kind.h"
#include "cc/executor/calls/layout.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

// Reads the leaves and buffers of a call. Fails if operands and results do not fit together, or if the kernels lack an
// element type. `is_in_place`: whether each result must have its operand's memory; if not, results of an all-reduce
// must not. In a reduce-scatter or an all-gather over `ranks` ranks, a leaf's `bytes` are the bytes of one slice.
Status ReadBuffers(const std::string& name, Kind kind, bool is_in_place, size_t ranks,
                   const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets, std::vector<Leaf>& leaves,
                   Buffers& buffers);

// Copies the operands to the results. Called for a group of one rank.
void HandOn(const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets);

}  // namespace jaxcomm
