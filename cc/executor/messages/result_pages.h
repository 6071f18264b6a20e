// Fresh memory of large results: the system backs it with huge pages, which cost far fewer page faults.
//
//   AdviseHugePages(*arriving.site, arriving.rank, arriving.buffers);   // before a byte of the results is stored
#pragma once

#include <cstdint>

#include "cc/executor/calls/buffers.h"
#include "cc/executor/sites/message_site.h"

namespace jaxcomm {

// Advises the system about the huge pages that lie wholly in a result. Changes no byte. Does nothing for results that
// share memory with operands, which has been stored to.
void AdviseHugePages(const MessageSite& site, uint32_t rank, const Buffers& buffers);

}  // namespace jaxcomm
