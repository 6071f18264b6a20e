// The default deadline of calls.
#pragma once

namespace jaxcomm {

inline constexpr double kDefaultDeadlineS = 60.0;

}  // namespace jaxcomm
