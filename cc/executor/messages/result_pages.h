// Makes the system back the fresh memory of large results with huge pages, which cause far fewer page faults.
//
//   AdviseHugePages(*arriving.site, arriving.rank, arriving.buffers);   // before a byte of the results is stored
#pragma once

#include <cstdint>

#include "cc/executor/calls/buffers.h"
#include "cc/executor/sites/message_site.h"

namespace jaxcomm {

// Advises the system to back the memory of large results with huge pages, except for parts at both ends that fill no
// huge page. Changes no byte. Does nothing for results that share memory with operands, because such memory is not
// fresh.
void AdviseHugePages(const MessageSite& site, uint32_t rank, const Buffers& buffers);

}  // namespace jaxcomm
