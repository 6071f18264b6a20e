// Sets the options of connections between processes, and finds out whether a host is silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/transport/rail_transport.h"

namespace jaxcomm {

// A process counts as gone if its host acknowledges no byte for this time. A switch finds another path, and a virtual
// machine migrates, in less time. The deadline of a call is longer. A process that is stopped or too busy to read does
// not count as gone while its host answers: only deadlines limit the wait for such a process.
// SocketTransport::FindSilent applies this limit to all kinds of sockets.
constexpr std::chrono::seconds kSilence(10);

// Makes the socket non-blocking, turns off the delay of Nagle's algorithm, and turns on probes of an idle connection.
// Fails if the socket is not a connected TCP socket.
Status PrepareSocket(int socket);

// Finds out whether the host on the other side of a connection answers.
//
//   std::optional<std::string> why = watch.Look(socket, time_since_the_last_look, limit);
class ConnectionWatch {
 public:
  // Returns a reason if an answer of the host is due and none has arrived since the last call, which was `since` ago.
  // The host must answer probes, and also bytes in flight while its receive window is open. The reason is a text for
  // the user, and says that the host has been silent for `limit`.
  std::optional<std::string> Look(int socket, std::chrono::nanoseconds since, std::chrono::nanoseconds limit);

 private:
  uint64_t acknowledged_ = 0;  // number of bytes that the host has acknowledged
};

// Returns the error text for a path that has delivered smaller packets, but no packet of `bytes` bytes, during the time
// `limit`.
std::string DescribeLongLost(uint32_t bytes, const std::string& address, std::chrono::nanoseconds limit);

SendProgress ProgressOf(int socket);

// From now on, closing the socket drops unsent bytes and resets the connection at once.
void ResetAtClose(int socket);

// Returns the numeric address of the other side.
std::string PeerAddress(int socket);

// Describes the end of a connection, such as "connection reset". `error` is 0 if the other side has closed the
// connection.
std::string DescribeEnd(int error);

}  // namespace jaxcomm
