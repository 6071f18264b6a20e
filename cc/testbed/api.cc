// C functions through which Python runs the switch of each testbed. `testbed` is the testbed's id. c_function.h defines
// how the functions report errors.

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

// The switches are never destroyed, because their threads may run until the process terminates.
Switches& TheSwitches() {
  static Switches* switches = std::make_unique<Switches>().release();
  return *switches;
}

// Calls use(switch) with the testbed's switch. Returns an error if the testbed has no switch.
template <typename Use>
Status WithSwitch(const char* testbed, Use use) {
  Switches& switches = TheSwitches();
  const std::lock_guard<std::mutex> lock(switches.mutex);
  const auto found = switches.by_testbed.find(testbed);
  if (found == switches.by_testbed.end()) return InvalidArgument(std::string("testbed ") + testbed + " has no switch");
  return use(*found->second);
}

}  // namespace

// Starts the testbed's switch. `links` has one line per port: the device's network namespace and name, the host's MAC
// address as a number, bytes per second, the share of packets that is lost, and the number of the host's leaf. `spines`
// has one line per spine: bytes per second, and the share of packets that is lost. `limits` has the limits for ordinary
// packets by priority, then the limits for important packets by priority, all in bytes.
JAXCOMM_EXPORT int jaxcomm_packet_switch_start(const char* testbed, const char* links, const char* spines, int64_t mtu,
                                               int64_t buffer_bytes, const int64_t* limits, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    std::vector<PacketSwitchThread::HostLink> read;
    std::istringstream lines(links);
    for (PacketSwitchThread::HostLink link; lines >> link.tap.network_namespace;) {
      lines >> link.tap.device >> link.port.address >> link.port.link.rate >> link.port.link.loss >> link.port.leaf;
      if (lines.fail()) return InvalidArgument("a switch's link needs six words");
      read.push_back(link);
    }
    std::vector<PacketSwitch::Link> read_spines;
    std::istringstream spine_lines(spines);
    for (PacketSwitch::Link link; spine_lines >> link.rate;) {
      if (!(spine_lines >> link.loss)) return InvalidArgument("a switch's spine needs two words");
      read_spines.push_back(link);
    }
    QueueLimits queues;
    queues.buffer = buffer_bytes;
    std::copy_n(limits, kPriorities, queues.ordinary.begin());
    std::copy_n(limits + kPriorities, kPriorities, queues.important.begin());
    Result<std::unique_ptr<PacketSwitchThread>> started = PacketSwitchThread::Start(read, mtu, queues, read_spines);
    if (!started.ok()) return started.status();
    Switches& switches = TheSwitches();
    const std::lock_guard<std::mutex> lock(switches.mutex);
    switches.by_testbed[testbed] = std::move(started.value());
    return Status();
  });
}

// Stops the testbed's switch, if there is one.
JAXCOMM_EXPORT int jaxcomm_packet_switch_stop(const char* testbed, JaxcommText* error) {
  return Answer(error, [&] {
    Switches& switches = TheSwitches();
    const std::lock_guard<std::mutex> lock(switches.mutex);
    switches.by_testbed.erase(testbed);
  });
}

JAXCOMM_EXPORT int jaxcomm_packet_switch_set_link(const char* testbed, int64_t port, double rate, double loss,
                                                  JaxcommText* error) {
  return Answer(error, [&] {
    return WithSwitch(testbed, [&](PacketSwitchThread& used) {
      return used.SetLink(static_cast<size_t>(port), {rate, loss});
    });
  });
}

JAXCOMM_EXPORT int jaxcomm_packet_switch_set_spine(const char* testbed, int64_t spine, double rate, double loss,
                                                   JaxcommText* error) {
  return Answer(error, [&] {
    return WithSwitch(testbed, [&](PacketSwitchThread& used) {
      return used.SetSpine(static_cast<size_t>(spine), {rate, loss});
    });
  });
}

// Copies the JSON that PacketSwitchThread::Report returns.
JAXCOMM_EXPORT int jaxcomm_packet_switch_report(const char* testbed, JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] {
    return WithSwitch(testbed, [&](PacketSwitchThread& used) {
      CopyText(used.Report(), text);
      return Status();
    });
  });
}

}  // namespace jaxcomm
