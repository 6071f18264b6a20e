// Connects the transports of a host's processes, for tests.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace jaxcomm {

inline int OpenFile(pid_t pid, int fd) {
  return open(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
}

// Returns connected transports. Transport i belongs to process i, and reports to events[i].
inline std::vector<std::unique_ptr<ShmTransport>> ConnectShm(const std::vector<Transport::Events*>& events,
                                                             int64_t arena_bytes) {
  std::vector<std::unique_ptr<ShmTransport>> transports;
  const auto processes = static_cast<uint32_t>(events.size());
  for (uint32_t process = 0; process < processes; ++process) {
    auto transport = ShmTransport::Create(process, processes, events[process], arena_bytes);
    EXPECT_TRUE(transport.ok()) << transport.status().message();
    transports.push_back(std::move(transport.value()));
  }
  for (uint32_t process = 0; process < processes; ++process) {
    for (uint32_t other = 0; other < processes; ++other) {
      if (other == process) continue;
      ShmTransport& peer = *transports[other];
      const Status status = transports[process]->AddPeer(other, peer.nonce(), OpenFile(getpid(), peer.fd()));
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  return transports;
}

}  // namespace jaxcomm
