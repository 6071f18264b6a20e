// The options of a connection between processes, and whether the other host still answers.
#pragma once

#include <chrono>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm {

// A host that answers nothing for so long is gone: longer than a switch takes to find another way or a virtual machine
// to move, shorter than the deadline of a call. A process that is stopped, or reads nothing, is not: its kernel
// answers, and it is the deadline of a call that ends the wait for it.
constexpr std::chrono::seconds kSilence(10);

// Makes it non-blocking, without delay, and probed when idle. An error: it is no connected TCP socket.
Status PrepareSocket(int socket);

// Whether the host has not answered for kSilence what was sent to it. Probes of idle connections end these themselves.
bool IsSilent(int socket);

// Why a connection ended, in words: "connection reset". 0: the other side has closed it.
std::string DescribeEnd(int error);

}  // namespace jaxcomm
