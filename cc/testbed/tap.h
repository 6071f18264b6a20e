// TAP devices, which are kernel interfaces whose frames a process reads and writes.
//
//   Result<Tap> tap = Tap::Open({"jaxcomm-1a2b3c4d-a", "eth0"}, 1500);
//   while (tap.value().Read(&frame)) ...
//
// The device must exist, with all offloads disabled, so that the kernel's packets have checksums and fit the MTU. The
// destructor releases the device. Read and Write do not block. Not thread-safe.
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

  // Opens a device. Moves the calling thread to the device's network namespace, where the thread stays.
  static Result<Tap> Open(const Name& name, int64_t mtu);

  Tap(Tap&& other) noexcept;
  Tap& operator=(Tap&&) = delete;
  ~Tap();

  // Moves a received frame into `frame`. Returns false if no frame has arrived.
  bool Read(Frame* frame);
  // Writes a frame. The frame is lost if the device does not accept it.
  void Write(const Frame& frame);

  int fd() const { return fd_; }

 private:
  Tap(int fd, int64_t mtu) : fd_(fd), buffer_(static_cast<size_t>(mtu) + Frame::kHeaderBytes + kVlanTagBytes) {}

  static constexpr size_t kVlanTagBytes = 4;

  int fd_;
  std::vector<std::byte> buffer_;
};

}  // namespace jaxcomm
