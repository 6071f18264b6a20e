// TAP devices: interfaces of the kernel whose frames a process reads and writes.
//
//   Result<Tap> tap = Tap::Open({"jaxcomm-1a2b3c4d-a", "eth0"}, 1500);
//   while (tap.value().Read(&frame)) ...
//
// The device must be there, without offloads, so that the kernel hands out packets with checksums, none longer than the
// MTU. It is given back when the Tap ends. Neither function blocks. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/testbed/frame.h"

namespace jaxcomm {

class Tap {
 public:
  struct Name {
    std::string network_namespace, device;
  };

  // Moves the calling thread to the network namespace, where it stays.
  static Result<Tap> Open(const Name& name, int64_t mtu);

  Tap(Tap&& other) noexcept;
  Tap& operator=(Tap&&) = delete;
  ~Tap();

  // Takes a frame that has come into `frame`. Returns false if there is none.
  bool Read(Frame* frame);
  // Where the device takes none, the frame is lost.
  void Write(const Frame& frame);

  int fd() const { return fd_; }

 private:
  Tap(int fd, int64_t mtu) : fd_(fd), buffer_(static_cast<size_t>(mtu) + Frame::kHeaderBytes + kVlanTagBytes) {}

  static constexpr size_t kVlanTagBytes = 4;

  int fd_;
  std::vector<std::byte> buffer_;
};

}  // namespace jaxcomm
