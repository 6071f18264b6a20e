// Reads the groups of ranks from the attributes of a custom call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

struct Group {
  std::string program;           // the program's name; empty for a group of one rank, which runs no program
  std::vector<int32_t> devices;  // by rank
};

// `devices` has the devices of the first group, then of the second group, and so on. `sizes` has each group's number of
// ranks. `programs` has the program names of the groups, each followed by a comma. Error texts begin with `who`.
Result<std::vector<Group>> ParseGroups(const std::string& who, std::string_view programs,
                                       xla::ffi::Span<const int32_t> devices, xla::ffi::Span<const int32_t> sizes);

}  // namespace jaxcomm
