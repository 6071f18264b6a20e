#include "cc/ffi/handlers/buffers.h"

#include <cstring>
#include <optional>

#include "cc/ffi/values.h"

namespace jaxcomm {

namespace ffi = xla::ffi;

Status ReadBuffers(const std::string& name, Kind kind, bool is_in_place, size_t ranks, const ffi::RemainingArgs& args,
                   const ffi::RemainingRets& rets, std::vector<Leaf>& leaves, Buffers& buffers) {
  if (args.size() != rets.size()) return Status(Code::kInternal, name + ": operands and results differ in number");
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(operand.element_type());
    if (!dtype) return Status(Code::kUnimplemented, name + ": no reduction of this element type");
    const size_t bytes = kind == Kind::kReduceScatter ? result.size_bytes() : operand.size_bytes();
    const bool shapes_fit = kind == Kind::kAllReduce       ? result.size_bytes() == bytes
                            : kind == Kind::kReduceScatter ? operand.size_bytes() == bytes * ranks
                                                           : result.size_bytes() == bytes * ranks;
    const bool memory_fits =
        kind != Kind::kAllReduce || bytes == 0 || (operand.untyped_data() == result.untyped_data()) == is_in_place;
    if (!shapes_fit || !memory_fits) {
      return Status(Code::kInternal, name + ": operand and result " + std::to_string(i) + " do not fit together");
    }
    leaves.push_back({*dtype, static_cast<int64_t>(bytes)});
    buffers.operands.push_back(static_cast<const std::byte*>(operand.untyped_data()));
    buffers.results.push_back(static_cast<std::byte*>(result.untyped_data()));
  }
  return Status();
}

void HandOn(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    if (result.untyped_data() != operand.untyped_data()) {
      std::memcpy(result.untyped_data(), operand.untyped_data(), operand.size_bytes());
    }
  }
}

}  // namespace jaxcomm
