// The options of a connection between processes, and how long its host may be silent.
#pragma once

#include <chrono>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm {

// A host that answers nothing for so long is gone: longer than a switch takes to find another way or a virtual machine
// to move, shorter than the deadline of a call. A host that answers, but whose process is stopped or reads nothing, is
// gone as well once so much is on its way to it that its kernel takes no more.
constexpr std::chrono::seconds kSilence(10);

// Makes it non-blocking, without delay, and probed when idle. An error: it is no connected TCP socket.
Status PrepareSocket(int socket);

// Why a connection ended, in words: "connection reset". 0: the other side has closed it.
std::string DescribeEnd(int error);

}  // namespace jaxcomm
