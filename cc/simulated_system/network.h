// Hosts, the links between them, and the sockets of simulated processes.
//
//   Network network(scheduler);
//   Link& link = network.Between(/*from=*/0, /*to=*/1, /*rail=*/2);   // one direction
//   auto [a, b] = network.ConnectTcp({process, 0}, {other, 1}, rail); // both ends' descriptors
//   network.Cut(link); network.Mend(link);
//
// A link has a rate and a delay. A cut link carries nothing. TCP retransmits after the link is mended; UDP does not.
// TCP connections behave as in the kernel: buffers are bounded, a close sends a reset if there are unread bytes and
// otherwise a FIN, and an idle connection whose probes are not answered fails with ETIMEDOUT.
#pragma once

#include <linux/tcp.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

// The properties that faults change in a link.
struct LinkQuality {
  int64_t bytes_per_second = 1000000000;
  double loss = 0;      // share of datagrams that are lost
  uint32_t mtu = 9000;  // size of the largest datagram that passes, in bytes; larger datagrams are lost
};

class Link : public LinkQuality {
 public:
  Nanoseconds delay = 50 * kMicrosecond, jitter = 0;
  double repeats = 0;          // share of datagrams that arrive twice
  LinkQuality without_faults;  // the properties that the link had before its current faults
  int faults = 0;
  bool is_cut = false;
  Nanoseconds cut_since = 0;
  Nanoseconds free_at = 0;
  std::vector<std::function<void()>> deferred;  // functions to run after the link is mended
};

// A file descriptor of a simulated process.
class Descriptor : public std::enable_shared_from_this<Descriptor> {
 public:
  virtual ~Descriptor() = default;
  // Returns the pending epoll events.
  virtual uint32_t Ready() const = 0;
  virtual void Close() {}
  virtual ssize_t Send(const iovec*, size_t) { return Error(EINVAL); }
  virtual ssize_t Receive(const iovec*, size_t) { return Error(EINVAL); }

  Process* owner = nullptr;
  bool is_accepted = true;
  int fd = -1;

 protected:
  static ssize_t Error(int error);
  // Wakes the tasks that wait for events of the owner's descriptors.
  void Changed() const;
};

// An address of a socket: 10.RAIL.HOST.1.
struct Address {
  uint32_t host, rail;
};

class TcpSocket final : public Descriptor {
 public:
  TcpSocket(Link& out, Link& in, Address peer_address);
  static void Pair(const std::shared_ptr<TcpSocket>& a, const std::shared_ptr<TcpSocket>& b);

  uint32_t Ready() const override;
  void Close() override;
  ssize_t Send(const iovec* vectors, size_t count) override;
  ssize_t Receive(const iovec* vectors, size_t count) override;
  void Shutdown();
  void ResetAtClose() { resets_ = true; }
  // Fills in a tcp_info.
  void Describe(tcp_info* info) const;
  int queued() const { return static_cast<int>(queued_); }
  // Ends an idle connection over a link that has been cut for a long time.
  void CheckAlive();

  const Address peer_address;

 private:
  struct Segment {
    std::string bytes;
    Nanoseconds arrives;
    bool is_end = false;
  };

  std::shared_ptr<TcpSocket> self() { return std::static_pointer_cast<TcpSocket>(shared_from_this()); }
  size_t unread() const { return received_.size() - read_; }
  void Push(std::string bytes, bool is_end);
  void Pump();
  void Acknowledge(size_t bytes);
  void SendReset();
  void Reset();
  bool is_cut() const { return out_.is_cut || in_.is_cut; }
  Nanoseconds LastHeard() const;

  Link& out_;
  Link& in_;
  std::shared_ptr<TcpSocket> peer_;
  const size_t send_room_, receive_room_;
  std::deque<Segment> flight_;  // segments that were sent but not yet delivered
  size_t queued_ = 0;           // number of bytes that the peer has not acknowledged
  uint64_t acknowledged_ = 0;
  Nanoseconds heard_ = 0;
  std::string received_;
  size_t read_ = 0;
  bool has_end_ = false, is_closed_ = false, is_shut_ = false, resets_ = false;
  int error_ = 0;
};

class UdpSocket final : public Descriptor {
 public:
  struct Datagram {
    std::string bytes;
    Nanoseconds arrived;  // arrival time by the wall clock
  };

  UdpSocket(Link& out, Address peer_address) : peer_address(peer_address), out_(out) {}
  static void Pair(const std::shared_ptr<UdpSocket>& a, const std::shared_ptr<UdpSocket>& b);

  uint32_t Ready() const override;
  void Close() override { is_closed_ = true; }
  ssize_t Send(const iovec* vectors, size_t count) override;
  // Returns false, and sets errno, if there is no datagram.
  bool Take(Datagram* datagram);

  const Address peer_address;

 private:
  static constexpr size_t kMostQueued = 512;
  static constexpr Nanoseconds kDeviceQueue = 20 * kMillisecond;

  std::shared_ptr<UdpSocket> self() { return std::static_pointer_cast<UdpSocket>(shared_from_this()); }
  void Deliver(const std::string& bytes);

  Link& out_;
  std::shared_ptr<UdpSocket> peer_;
  std::deque<Datagram> queue_;
  bool is_closed_ = false;
  int error_ = 0;
};

class EventFd final : public Descriptor {
 public:
  uint32_t Ready() const override;
  ssize_t Send(const iovec* vectors, size_t count) override;
  ssize_t Receive(const iovec* vectors, size_t count) override;

 private:
  uint64_t count_ = 0;
};

class Network {
 public:
  static constexpr int kFirstDescriptor = 1 << 20;
  struct End {
    Process& process;
    uint32_t host;
  };

  explicit Network(Scheduler& scheduler);
  static Network& Get();

  Link& Between(uint32_t from, uint32_t to, uint32_t rail) { return links_[{from, to, rail}]; }
  void Cut(Link& link);
  void Mend(Link& link);

  // Returns the descriptors of `a` and `b`. The descriptor of `b` waits in a backlog until `b` accepts it.
  std::pair<int, int> ConnectTcp(End a, End b, uint32_t rail);
  std::pair<int, int> ConnectUdp(End a, End b, uint32_t rail);

  void Accept(int fd) { descriptors_.at(fd)->is_accepted = true; }

  int Add(std::shared_ptr<Descriptor> descriptor, Process& owner);
  // Returns null, and sets errno, if there is no such descriptor.
  Descriptor* Find(int fd);
  int Close(int fd);
  // Returns the number of descriptors that a process has opened or accepted.
  size_t Count(const Process& process) const;
  // Closes all descriptors of a process that has been killed.
  void CloseAll(const Process& process);
  static Key KeyOf(const Process& process) { return {2, reinterpret_cast<uint64_t>(&process)}; }

 private:
  Scheduler& scheduler_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Link> links_;
  std::map<int, std::shared_ptr<Descriptor>> descriptors_;
  std::vector<std::pair<Link*, std::weak_ptr<TcpSocket>>> connections_;
  int next_ = kFirstDescriptor;
};

}  // namespace jaxcomm::simulated
