// The groups of ranks that a custom call reduces over, from its attributes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

struct Group {
  std::string program;           // its name; empty in a group of one rank, which has nothing to do
  std::vector<int32_t> devices;  // by rank
};

// `devices` holds those of all groups, of `sizes` ranks each; `programs` their programs' names, after each a comma.
// Errors begin with `who`.
Result<std::vector<Group>> ParseGroups(const std::string& who, std::string_view programs,
                                       xla::ffi::Span<const int32_t> devices, xla::ffi::Span<const int32_t> sizes);

}  // namespace jaxcomm
