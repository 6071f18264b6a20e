// Tests that the end of a process is noticed at once, even if a forked child outlives the process.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "cc/transport/testing/socket_kinds.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

template <typename Kind>
class ForkTest : public testing::Test {};

TYPED_TEST_SUITE(ForkTest, IpKinds);

TYPED_TEST(ForkTest, TheEndOfAProcessIsNoticedWhileItsChildLives) {
  using Node = typename TypeParam::Node;
  const auto [own, other] = TypeParam::Paths();
  std::array<int, 2> lives;  // a pipe that is closed when both the process and its child have ended
  ASSERT_EQ(pipe(lives.data()), 0);
  const pid_t process = fork();
  if (process == 0) {
    close(TypeParam::ConnectionOf(own));
    Node node(1);
    if (!node.transport->AddPeer(0, other).ok()) _exit(1);
    if (fork() == 0) {
      alarm(60);
      for (;;) pause();
    }
    node.transport->Notify(0, "forked");
    node.transport->Flush();
    for (;;) pause();
  }
  close(TypeParam::ConnectionOf(other));
  close(lives[1]);
  Node node(0);
  ASSERT_TRUE(node.transport->AddPeer(1, own).ok());
  node.AwaitNotices(1, 1);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  EXPECT_EQ(node.AwaitGone(1).find("process 1 is gone: connection "), 0u);
  pollfd end{lives[0], POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 0), 0) << "the child has ended, too";
  close(lives[0]);
}

}  // namespace
}  // namespace jaxcomm
