// The options of a connection between processes, and the signs that its host is silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/transport/rail_transport.h"

namespace jaxcomm {

// A process is gone if its host acknowledges no byte for this time: longer than a switch takes to find another way or a
// virtual machine to move, shorter than the deadline of a call. A process whose host answers stays, also if the process
// is stopped or too busy to read: deadlines limit the wait for a process.
// SocketTransport::FindSilent applies this limit to every kind.
constexpr std::chrono::seconds kSilence(10);

// Makes it non-blocking, without delay, and probed when idle. An error: it is no connected TCP socket.
Status PrepareSocket(int socket);

// Finds whether the host on the other side of a connection answers.
//
//   std::optional<std::string> why = watch.Look(socket, time_since_the_last_look, limit);
class ConnectionWatch {
 public:
  // The reason, in words for the user, if the host has given no answer since the last look but owes one; for the case
  // that it goes on for `limit`. It owes an answer to bytes under way, unless it takes no more, and to probes.
  std::optional<std::string> Look(int socket, std::chrono::nanoseconds since, std::chrono::nanoseconds limit);

 private:
  uint64_t acknowledged_ = 0;  // bytes
};

// The error of a path on which packets of this size never arrive within the limit, although smaller ones do.
std::string DescribeLongLost(uint32_t bytes, const std::string& address, std::chrono::nanoseconds limit);

SendProgress ProgressOf(int socket);

// Closing the socket then drops unsent bytes and resets the connection at once.
void ResetAtClose(int socket);

// The address of the other side, in digits.
std::string PeerAddress(int socket);

// The end of a connection in words: "connection reset". 0: the other side has closed it.
std::string DescribeEnd(int error);

}  // namespace jaxcomm
