// A simulated job: processes on several hosts that call collectives, while faults of all kinds strike.
//
//   RunJobHistory(seed);   // in a child process: exits with status 0, or prints what went wrong and exits with 1
//
// The seed determines everything: the job, its network, the calls, the faults, and the order in which threads run. The
// members enter a barrier before each block of calls, as in JAX's live_devices. The members connect anew when the
// barrier returns other members. Killed processes are started again. In every history:
//
// - A call that succeeds has the right result.
// - The error of a failed call names a process that failed, stopped, was cut off or had a failed call itself, or a rank
//   whose messages are missing. Without a fault, no call fails.
// - Every call ends by its deadline.
// - After the last fault, all processes are members again and their calls succeed.
// - A member that leaves has closed all its descriptors.
#pragma once

#include <cstdint>

namespace jaxcomm::simulated {

[[noreturn]] void RunJobHistory(uint32_t seed);

}  // namespace jaxcomm::simulated
