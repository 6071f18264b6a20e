#include "cc/testbed/packet_switch_thread.h"

#include <memory>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// A switch between devices needs root, so tests/testbed tests it.

TEST(PacketSwitchThreadTest, WithoutDevicesItRunsAndEnds) {
  const Result<std::unique_ptr<PacketSwitchThread>> started = PacketSwitchThread::Start({}, 1500, {});
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(started.value()->Report(), "{\"ports\": [], \"spines\": []}");
  EXPECT_EQ(started.value()->SetLink(0, {}).message(), "the switch has no port 0");
  EXPECT_EQ(started.value()->SetSpine(0, {}).message(), "the switch has no spine 0");
}

TEST(PacketSwitchThreadTest, ANamespaceThatIsNotThereIsAnError) {
  PacketSwitchThread::HostLink link;
  link.tap = {"jaxcomm-none", "eth0"};
  EXPECT_EQ(PacketSwitchThread::Start({link}, 1500, {}).status().message(),
            "device eth0 of jaxcomm-none: /run/netns/jaxcomm-none: No such file or directory.\n"
            "  Cure: `jaxcomm testbed check`.");
}

}  // namespace
}  // namespace jaxcomm
