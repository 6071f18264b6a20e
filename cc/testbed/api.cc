// The C functions by which Python runs the switches of testbeds, each by its testbed's id; c_function.h says how they
// end.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/testbed/packet_switch_thread.h"

namespace jaxcomm {
namespace {

struct Switches {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<PacketSwitchThread>> by_testbed;
};

// Lives until the process ends, as its threads may.
Switches& TheSwitches() {
  static Switches* switches = std::make_unique<Switches>().release();
  return *switches;
}

// Calls use(switch) with the testbed's.
template <typename Use>
Status WithSwitch(const char* testbed, Use use) {
  Switches& switches = TheSwitches();
  const std::lock_guard<std::mutex> lock(switches.mutex);
  const auto found = switches.by_testbed.find(testbed);
  if (found == switches.by_testbed.end()) return InvalidArgument(std::string("testbed ") + testbed + " has no switch");
  return use(*found->second);
}

}  // namespace

// `links`: a line for each port: the device's network namespace and name, the host's MAC address as a number, bytes per
// second, and the share of packets that is lost. `limits`: of ordinary packets by priority, then of important ones.
JAXCOMM_EXPORT int jaxcomm_packet_switch_start(const char* testbed, const char* links, int64_t mtu,
                                               int64_t buffer_bytes, const int64_t* limits, char* error,
                                               int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    std::vector<PacketSwitchThread::HostLink> read;
    std::istringstream lines(links);
    for (PacketSwitchThread::HostLink link; lines >> link.tap.network_namespace;) {
      lines >> link.tap.device >> link.port.address >> link.port.link.rate >> link.port.link.loss;
      if (lines.fail()) return InvalidArgument("a switch's link is not five words");
      read.push_back(link);
    }
    QueueLimits queues;
    queues.buffer = buffer_bytes;
    std::copy_n(limits, kPriorities, queues.ordinary.begin());
    std::copy_n(limits + kPriorities, kPriorities, queues.important.begin());
    Result<std::unique_ptr<PacketSwitchThread>> started = PacketSwitchThread::Start(read, mtu, queues);
    if (!started.ok()) return started.status();
    Switches& switches = TheSwitches();
    const std::lock_guard<std::mutex> lock(switches.mutex);
    switches.by_testbed[testbed] = std::move(started.value());
    return Status();
  });
}

// Ends it; nothing happens where there is none.
JAXCOMM_EXPORT int jaxcomm_packet_switch_stop(const char* testbed, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    Switches& switches = TheSwitches();
    const std::lock_guard<std::mutex> lock(switches.mutex);
    switches.by_testbed.erase(testbed);
  });
}

JAXCOMM_EXPORT int jaxcomm_packet_switch_set_link(const char* testbed, int64_t port, double rate, double loss,
                                                  char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    return WithSwitch(testbed, [&](PacketSwitchThread& used) {
      return used.SetLink(static_cast<size_t>(port), {rate, loss});
    });
  });
}

// JSON, as packet_switch_thread.h says.
JAXCOMM_EXPORT int jaxcomm_packet_switch_report(const char* testbed, char* text, int64_t text_capacity, int64_t* size,
                                                char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    return WithSwitch(testbed, [&](PacketSwitchThread& used) {
      CopyText(used.Report(), text, text_capacity, size);
      return Status();
    });
  });
}

}  // namespace jaxcomm
