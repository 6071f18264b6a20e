// Asks the system to use huge pages for the fresh memory of large results. Huge pages cause far fewer page faults.
//
//   AdviseHugePages(*arriving.site, arriving.rank, arriving.buffers);   // before a byte of the results is stored
#pragma once

#include <cstdint>

#include "cc/executor/calls/buffers.h"
#include "cc/executor/sites/message_site.h"

namespace jaxcomm {

// Advises the system to use huge pages for the memory of large results, except for the parts at both ends that are
// smaller than a huge page. Changes no byte. Does nothing for results that share memory with operands, because such
// memory is not fresh.
void AdviseHugePages(const MessageSite& site, uint32_t rank, const Buffers& buffers);

}  // namespace jaxcomm
