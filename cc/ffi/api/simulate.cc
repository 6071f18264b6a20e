// The C function that Python calls to simulate schedules. c_function.h defines how the function reports errors.

#include <cstdint>

#include "cc/base/c_function.h"
#include "cc/simulate/message_times.h"

namespace jaxcomm {

// Calls FindTimes of message_times.h.
JAXCOMM_EXPORT int jaxcomm_simulate(const MessageNetwork* network, const MessageTimes* times, JaxcommText* error) {
  return Answer(error, [&] { FindTimes(*network, *times); });
}

}  // namespace jaxcomm
