// The options of a connection between processes, and how long its host may be silent.
#pragma once

#include <chrono>
#include <string>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A host that answers nothing for so long is gone: longer than a switch takes to find another way or a virtual machine
// to move, shorter than the deadline of a call. One that answers stays, also if its process is stopped or too busy to
// read: how long to wait for a process is for deadlines to say.
constexpr std::chrono::seconds kSilence(10);

// Makes it non-blocking, without delay, and probed when idle. An error: it is no connected TCP socket.
Status PrepareSocket(int socket);

// Whether the other host owes an answer to what it has been sent, and has given none for a second. It owes none while
// it says that it takes nothing.
bool IsUnanswered(int socket);

SendProgress ProgressOf(int socket);

// Its end drops what has not been sent, and the other side hears of it at once.
void ResetAtClose(int socket);

// The address of the other side, in digits.
std::string PeerAddress(int socket);

// Why a connection ended, in words: "connection reset". 0: the other side has closed it.
std::string DescribeEnd(int error);

}  // namespace jaxcomm
