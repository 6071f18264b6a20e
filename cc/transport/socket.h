// The options of a connection between processes, and what shows that its host is silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A process whose host acknowledges nothing of what it was sent for so long is gone: longer than a switch takes to find
// another way or a virtual machine to move, shorter than the deadline of a call. One whose host answers stays, also if
// the process is stopped or too busy to read: how long to wait for a process is for deadlines to say.
// SocketTransport::FindSilent applies this limit to every kind.
constexpr std::chrono::seconds kSilence(10);

// Makes it non-blocking, without delay, and probed when idle. An error: it is no connected TCP socket.
Status PrepareSocket(int socket);

// Finds whether the host on the other side of a connection answers.
//
//   std::optional<std::string> why = watch.Look(socket, time_since_the_last_look, limit);
class ConnectionWatch {
 public:
  // In words for the user, why the host counts as silent once this has been so for `limit`: it owes an answer and has
  // given none since the last look. It owes one to bytes under way, unless it takes no more, and to probes. None: it
  // owes none, or answers.
  std::optional<std::string> Look(int socket, std::chrono::nanoseconds since, std::chrono::nanoseconds limit);

 private:
  uint64_t acknowledged_ = 0;  // bytes
};

// Packets of this size never reach the address within the limit, although smaller ones do.
std::string DescribeLongLost(uint32_t bytes, const std::string& address, std::chrono::nanoseconds limit);

SendProgress ProgressOf(int socket);

// Its end drops what has not been sent, and the other side hears of it at once.
void ResetAtClose(int socket);

// The address of the other side, in digits.
std::string PeerAddress(int socket);

// Why a connection ended, in words: "connection reset". 0: the other side has closed it.
std::string DescribeEnd(int error);

}  // namespace jaxcomm
