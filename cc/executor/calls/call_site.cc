#include "cc/executor/calls/call_site.h"

namespace jaxcomm {

Status TakeFirst(const Leaf& expected, const std::string& message, std::vector<Leaf>& leaves, Buffers& buffers) {
  if (leaves.empty() || leaves[0].dtype != expected.dtype || leaves[0].bytes != expected.bytes) {
    return InvalidArgument(message);
  }
  buffers.leading = buffers.operands[0];
  buffers.leading_result = buffers.results[0];
  leaves.erase(leaves.begin());
  buffers.operands.erase(buffers.operands.begin());
  buffers.results.erase(buffers.results.begin());
  return Status();
}

Status FindReduces(const std::string& name, Kind kind, Reduction reduction, const std::vector<Leaf>& leaves,
                   std::vector<ReduceFn>& reduces) {
  for (const Leaf& leaf : leaves) {
    // An all-gather only copies, so the reduction of its kernel does not matter. Every type has a kernel for sums.
    reduces.push_back(FindReduce(leaf.dtype, kind == Kind::kAllGather ? Reduction::kSum : reduction));
    if (reduces.back() == nullptr) {
      return Status(Code::kUnimplemented, name + ": complex numbers have no order, so no max or min");
    }
  }
  return Status();
}

}  // namespace jaxcomm
