// The deadline of calls unless the user sets one.
#pragma once

namespace jaxcomm {

inline constexpr double kDefaultDeadlineS = 60.0;

}  // namespace jaxcomm
