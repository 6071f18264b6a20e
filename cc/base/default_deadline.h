// The deadline of calls until one is set.
#pragma once

namespace jaxcomm {

inline constexpr double kDefaultDeadlineS = 60.0;

}  // namespace jaxcomm
