// The state of TcpTransport for one other process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/socket.h"
#include "cc/transport/tcp/frame_reader.h"
#include "cc/transport/tcp/outbox.h"
#include "cc/transport/tcp/tcp_transport.h"

namespace jaxcomm {

struct TcpTransport::Peer : SocketPeer {
  Peer(uint32_t process, Inbox* inbox) : SocketPeer(process), reader(process, inbox) {}

  void Push(const Header& header, std::shared_ptr<Outgoing> message) override {
    outbox.Push(header, std::move(message));
  }
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload) override {
    outbox.PushCopy(header, payload);
  }
  size_t copied_bytes() const override { return outbox.copied_bytes(); }
  bool waits() const override { return reader.waits(); }

  // Resets the peer for a new connection, after the last connection has been closed.
  void Restart() {
    reader.Restart();
    outbox.Clear();
    blocked = left = false;
    write_error = silent_looks = 0;
    watch = ConnectionWatch();
    gone = Status();
  }

  int socket = -1;
  FrameReader reader;
  Outbox outbox;
  uint32_t interest = 0;
  int write_error = 0;  // if set, nothing more is written, but bytes that have arrived are still read
  ConnectionWatch watch;
};

}  // namespace jaxcomm
