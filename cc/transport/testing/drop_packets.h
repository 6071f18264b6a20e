// Simulates a silent host in a test. Packets to a socket are dropped before the kernel can answer them.
//
//   DropPackets(socket);                         // drops all packets
//   DropPackets(socket, /*longer_than=*/1000);   // drops packets of more than 1000 bytes, TCP or UDP header included
#pragma once

#include <linux/filter.h>
#include <sys/socket.h>

#include <cstdint>

#include "gtest/gtest.h"

namespace jaxcomm {

inline void DropPackets(int socket, uint32_t longer_than = 0) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, longer_than, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  const sock_fprog program{4, code};
  ASSERT_EQ(setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

}  // namespace jaxcomm
