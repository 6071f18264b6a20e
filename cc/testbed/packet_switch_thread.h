// A PacketSwitch between TAP devices, on its own thread.
//
//   Result<std::unique_ptr<PacketSwitchThread>> started = PacketSwitchThread::Start(links, 1500, limits);
//   started.value()->SetLink(2, {12.5e6, 0});
//   std::cout << started.value()->Report();
//
// The destructor stops the thread and releases the devices. Thread-safe. SetLink and Report wait at most a few
// milliseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/testbed/output_queue.h"
#include "cc/testbed/packet_switch.h"
#include "cc/testbed/tap.h"

namespace jaxcomm {

class PacketSwitchThread {
 public:
  struct HostLink {
    Tap::Name tap;
    PacketSwitch::Port port;
  };

  // Returns an error if a device cannot be opened.
  static Result<std::unique_ptr<PacketSwitchThread>> Start(const std::vector<HostLink>& links, int64_t mtu,
                                                           const QueueLimits& limits,
                                                           const std::vector<PacketSwitch::Link>& spines = {});
  ~PacketSwitchThread();

  Status SetLink(size_t port, PacketSwitch::Link link);
  Status SetSpine(size_t spine, PacketSwitch::Link link);
  // Returns JSON: {"ports": [{"random_losses": 0, "queues": [{"priority": 0, …}]}], "spines": [{"packets": 0, …}]}.
  // Times are in seconds. Unused queues are left out.
  std::string Report() const;

 private:
  // The open devices.
  class OpenTaps : public PacketSwitch::Taps {
   public:
    bool Read(size_t port, Frame* frame) override { return taps[port].Read(frame); }
    void Write(size_t port, const Frame& frame) override { taps[port].Write(frame); }

    std::vector<Tap> taps;
  };

  PacketSwitchThread(const std::vector<PacketSwitch::Port>& ports, const QueueLimits& limits,
                     const std::vector<PacketSwitch::Link>& spines)
      : switch_(ports, limits, &taps_, spines) {}

  Status OpenAll(const std::vector<HostLink>& links, int64_t mtu);
  void Work();
  void Await(int64_t next);

  OpenTaps taps_;
  mutable std::mutex mutex_;
  PacketSwitch switch_;  // guarded by mutex_
  std::atomic<bool> stopping_{false};
  std::optional<std::thread> thread_;
};

}  // namespace jaxcomm
