// Another process, as TcpTransport sees it.
#pragma once

#include <cstdint>
#include <string>

#include "cc/base/status.h"
#include "cc/transport/tcp/frame_reader.h"
#include "cc/transport/tcp/outbox.h"
#include "cc/transport/tcp/tcp_transport.h"

namespace jaxcomm {

struct TcpTransport::Peer {
  Peer(uint32_t process, Inbox* inbox) : process(process), reader(process, inbox) {}

  // For a new connection: the last one has been closed.
  void Restart() {
    reader.Restart();
    outbox.Clear();
    blocked = left = false;
    write_error = unanswered = 0;
    gone = Status();
  }

  const uint32_t process;
  int socket = -1;
  FrameReader reader;
  Outbox outbox;
  uint32_t interest = 0;
  bool queued = false;
  bool writing = false;  // a thread does
  bool blocked = false;  // the kernel takes no more for now
  int write_error = 0;   // then nothing is written; what has come already is still read
  int unanswered = 0;    // looks in a row, of this process's own time: it may have been stopped itself
  bool left = false;     // one side has said goodbye
  Status gone;           // ok: it is not
};

}  // namespace jaxcomm
