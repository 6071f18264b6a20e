// The state that TcpTransport keeps for another process.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/socket.h"
#include "cc/transport/tcp/frame_reader.h"
#include "cc/transport/tcp/outbox.h"
#include "cc/transport/tcp/records.h"
#include "cc/transport/tcp/tcp_transport.h"

namespace jaxcomm {

struct TcpTransport::Peer : SocketPeer {
  Peer(uint32_t process, Inbox* inbox) : SocketPeer(process), reader(process, inbox) {}

  void Push(const Header& header, std::shared_ptr<Outgoing> message, uint32_t /*priority*/) override {
    outbox.Push(header, std::move(message));
  }
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload, uint32_t /*priority*/) override {
    outbox.PushCopy(header, payload);
  }
  size_t copied_bytes() const override { return outbox.copied_bytes(); }
  bool waits() const override { return reader.waits(); }

  ssize_t Receive(msghdr* message) {
    return records ? records->reader.Receive(socket, message->msg_iov, message->msg_iovlen)
                   : recvmsg(socket, message, MSG_DONTWAIT);
  }
  // Returns whether the next Receive will find bytes without an event of the socket. Called by the polling thread.
  bool has_more() const { return records && records->reader.has_more(); }
  ssize_t Send(const msghdr& message) {
    return records ? records->writer.Send(socket, message.msg_iov, message.msg_iovlen)
                   : sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  // Returns whether Send has taken bytes that the kernel has not accepted yet. Called by the writing thread, or while
  // no thread writes.
  bool has_sealed() const { return records && records->writer.has_unsent(); }

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
  std::unique_ptr<Records> records;  // null if the connection is not encrypted
  FrameReader reader;
  Outbox outbox;
  uint32_t interest = 0;
  int write_error = 0;  // if set, nothing more is written, but bytes that have arrived are still read
  ConnectionWatch watch;
};

}  // namespace jaxcomm
