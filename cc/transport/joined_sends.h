// One message over several transports.
//
//   SendParts({&shm, &tcp}, {{{1, id}}, {{2, id}, {3, id}}}, spans, done);   // by transport, its receivers
#pragma once

#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

// Calls back once, when all transports have, with the first of their errors.
void SendParts(const std::vector<Transport*>& transports, const std::vector<std::vector<Receiver>>& parts,
               std::vector<ConstSpan> spans, Sent done);

}  // namespace jaxcomm
