// Sends one message over several transports.
//
//   SendParts({&shm, &tcp}, {{{1, id}}, {{2, id}, {3, id}}}, spans, done);   // the receivers of each transport
#pragma once

#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

// Sends the message to the receivers parts[i] over transports[i]. Calls `done` once, after all transports have
// finished. The status is the first error that a transport reported.
void SendParts(const std::vector<Transport*>& transports, const std::vector<std::vector<Receiver>>& parts,
               std::vector<ConstSpan> spans, Sent done);

}  // namespace jaxcomm
