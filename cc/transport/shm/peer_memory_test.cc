#include "cc/transport/shm/peer_memory.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm::shm {
namespace {

constexpr int64_t kBytes = (int64_t{3} << 20) + 5;  // larger than a piece of PeerMemory::Read

uint64_t nonce = 0x1234567890abcdef;
const uint64_t kNonceAt = reinterpret_cast<uint64_t>(&nonce);

// A forked process, which has a copy of this process's memory and sleeps until it is killed.
class Child {
 public:
  Child() : pid_(fork()) {
    for (; pid_ == 0;) pause();
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(PeerMemoryTest, ReadsWhatTheOtherProcessHas) {
  std::vector<std::byte> theirs(kBytes, std::byte{7});
  Child child;
  theirs.assign(kBytes, std::byte{8});  // changes only this process's copy
  std::vector<std::byte> mine(kBytes);
  const PeerMemory memory(child.pid(), kNonceAt, nonce);
  if (!memory.CanRead()) GTEST_SKIP() << "this system lets no process read another one's memory";
  EXPECT_TRUE(memory.Read(theirs.data(), mine.data(), kBytes));
  EXPECT_EQ(mine, std::vector<std::byte>(kBytes, std::byte{7}));
  child.Kill();
  EXPECT_FALSE(memory.Read(theirs.data(), mine.data(), 1));
}

TEST(PeerMemoryTest, AnotherNonceOrMemoryThatIsNotMappedIsAnError) {
  std::vector<std::byte> mine(kBytes);
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto* const bytes = static_cast<const std::byte*>(pages);
  EXPECT_FALSE(PeerMemory(getpid(), kNonceAt, nonce + 1).Read(bytes, mine.data(), kBytes));
  EXPECT_FALSE(PeerMemory(getpid(), kNonceAt, nonce + 1).CanRead());
  const PeerMemory memory(getpid(), kNonceAt, nonce);
  if (!memory.CanRead()) GTEST_SKIP() << "this system lets no process read another one's memory";
  EXPECT_TRUE(memory.Read(bytes, mine.data(), kBytes));
  munmap(static_cast<std::byte*>(pages) + (2 << 20), kBytes - (2 << 20));
  EXPECT_FALSE(memory.Read(bytes, mine.data(), kBytes));
}

// Runs in a child, because a process cannot remove the filter.
TEST(PeerMemoryTest, AFilterThatRefusesTheCallOrKillsIsNoticed) {
  for (const uint32_t action : {SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ERRNO | ENOSYS, SECCOMP_RET_KILL_PROCESS}) {
    const pid_t child = fork();
    if (child == 0) {
      sock_filter rules[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, action),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      };
      const sock_fprog filter = {static_cast<unsigned short>(std::size(rules)), rules};
      if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        _exit(2);
      }
      _exit(PeerMemory::IsAllowed() && PeerMemory(getpid(), kNonceAt, nonce).Read(nullptr, nullptr, 0) ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this system has no filter of system calls";
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

}  // namespace
}  // namespace jaxcomm::shm
