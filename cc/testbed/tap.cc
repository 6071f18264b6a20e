#include "cc/testbed/tap.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace jaxcomm {
namespace {

Status Failed(const Tap::Name& name, const std::string& what, int error) {
  return InvalidArgument("device " + name.device + " of " + name.network_namespace + ": " + what + ": " +
                         std::strerror(error) + ".\n  Cure: `jaxcomm testbed check`.");
}

}  // namespace

Result<Tap> Tap::Open(const Name& name, int64_t mtu) {
  const std::string path = "/run/netns/" + name.network_namespace;
  const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0) return Failed(name, path, errno);
  const int entered = setns(space, CLONE_NEWNET), why = errno;
  close(space);
  if (entered != 0) return Failed(name, path, why);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return Failed(name, "/dev/net/tun", errno);
  Tap tap(fd, mtu);
  ifreq request = {};
  name.device.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (ioctl(fd, TUNSETIFF, &request) != 0) return Failed(name, "cannot open the TAP device", errno);
  return tap;
}

Tap::Tap(Tap&& other) noexcept : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

Tap::~Tap() {
  if (fd_ >= 0) close(fd_);
}

bool Tap::Read(Frame* frame) {
  const ssize_t size = read(fd_, buffer_.data(), buffer_.size());
  if (size <= 0) return false;
  frame->bytes.assign(buffer_.begin(), buffer_.begin() + size);
  return true;
}

void Tap::Write(const Frame& frame) {
  // The write fails if the device is down or the kernel has no memory. The frame is then lost, as on a link.
  if (write(fd_, frame.bytes.data(), frame.bytes.size()) < 0) return;
}

}  // namespace jaxcomm
