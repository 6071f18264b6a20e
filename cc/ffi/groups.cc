#include "cc/ffi/groups.h"

#include <algorithm>

namespace jaxcomm {

Result<std::vector<Group>> ParseGroups(const std::string& who, std::string_view programs,
                                       xla::ffi::Span<const int32_t> devices, xla::ffi::Span<const int32_t> sizes) {
  std::vector<Group> groups;
  size_t next = 0;
  for (size_t group = 0; group < sizes.size(); ++group) {
    const size_t comma = programs.find(',');
    const size_t ranks = static_cast<size_t>(std::max(sizes[group], 0));
    if (comma == std::string_view::npos || ranks == 0 || devices.size() - next < ranks) {
      return InvalidArgument(who + ": group " + std::to_string(group) + " of " + std::to_string(sizes[group]) +
                             " ranks lacks its program or its devices");
    }
    Group& made = groups.emplace_back();
    made.program = programs.substr(0, comma);
    programs.remove_prefix(comma + 1);
    for (size_t rank = 0; rank < ranks; ++rank, ++next) {
      if (devices[next] < 0) {
        return InvalidArgument(who + ": device id " + std::to_string(devices[next]) + " is negative");
      }
      made.devices.push_back(devices[next]);
    }
  }
  if (next != devices.size()) return InvalidArgument(who + ": more devices than its groups have ranks");
  return groups;
}

}  // namespace jaxcomm
