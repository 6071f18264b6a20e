// Tests with real processes. Processes must notice the end of another process, and must refuse wrong memory files. An
// ended process must leave nothing behind.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr int64_t kArena = int64_t{4} << 20;

struct Address {
  pid_t pid;
  int fd;
  uint64_t nonce;
};

// A forked process, which is process 1 of 2. It runs `work` with its transport and then sleeps until it is killed.
class Child {
 public:
  explicit Child(const std::function<void(ShmTransport&)>& work) {
    int from_child[2], to_child[2];
    EXPECT_EQ(pipe2(from_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      RecordedEvents events(1);
      auto transport = ShmTransport::Create(1, 2, &events, kArena);
      const Address mine = {getpid(), transport.value()->fd(), transport.value()->nonce()};
      Address other;
      if (write(from_child[1], &mine, sizeof(mine)) != sizeof(mine)) _exit(1);
      if (read(to_child[0], &other, sizeof(other)) != sizeof(other)) _exit(2);
      if (!transport.value()->AddPeer(0, other.nonce, OpenFile(other.pid, other.fd)).ok()) _exit(3);
      work(*transport.value());
      for (;;) pause();
    }
    close(from_child[1]);  // otherwise read() would not return if the child ended
    EXPECT_EQ(read(from_child[0], &address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
    answer_ = to_child[1];
    close(from_child[0]);
    close(to_child[0]);
  }
  ~Child() {
    Kill();
    waitpid(pid_, nullptr, 0);
    close(answer_);
  }
  void Connect(ShmTransport& mine) {
    const int file = OpenFile(address.pid, address.fd);  // must be open before the child can end
    const Address here = {getpid(), mine.fd(), mine.nonce()};
    EXPECT_EQ(write(answer_, &here, sizeof(here)), static_cast<ssize_t>(sizeof(here)));
    const Status status = mine.AddPeer(1, address.nonce, file);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void Kill() { kill(pid_, SIGKILL); }  // leaves a zombie

  Address address;

 private:
  pid_t pid_;
  int answer_;
};

std::unique_ptr<ShmTransport> Make(Transport::Events* events) {
  auto transport = ShmTransport::Create(0, 2, events, kArena);
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return std::move(transport.value());
}

TEST(ProcessesTest, AKilledProcessIsNoticedAlsoAsAZombieAndWhileItsChildLives) {
  Child child([](ShmTransport& transport) {
    if (fork() == 0) {
      sleep(120);  // outlives its parent, and keeps all descriptors that it has inherited
      _exit(0);
    }
    transport.Notify(0, "forked");
    transport.Flush();
  });
  RecordedEvents events(0);
  const std::unique_ptr<ShmTransport> transport = Make(&events);
  child.Connect(*transport);
  events.AwaitNotices(1, 1);
  EXPECT_TRUE(events.gone().empty());
  const auto killed = std::chrono::steady_clock::now();
  child.Kill();
  events.AwaitGone(1);
  const std::chrono::duration<double, std::milli> after = std::chrono::steady_clock::now() - killed;
  RecordProperty("noticed_after_ms", std::to_string(after.count()));
  std::printf("noticed after %.0f ms\n", after.count());
  EXPECT_EQ(events.gone()[1], "process 1 has died: it was killed, or crashed");
}

TEST(ProcessesTest, MessagesFromBeforeAnEndStillCome) {
  std::vector<std::byte> content = Content(Id(1, 1, 0), 100000), memory(100000);
  Child child([&](ShmTransport& transport) {
    transport.Send({{0, Id(1, 1, 0)}}, All(std::as_const(content)), [](const Status&) {});
    transport.Notify(0, "sent");
    kill(getpid(), SIGKILL);
  });
  RecordedEvents events(0);
  const std::unique_ptr<ShmTransport> transport = Make(&events);
  child.Connect(*transport);
  events.AwaitGone(1);
  EXPECT_EQ(events.AwaitNotices(1, 1).size(), 1u);
  Counter come;
  transport->Post(1, Id(1, 1, 0), All(memory), false, [&](const Status& status, auto) {
    EXPECT_TRUE(status.ok());
    come.Add();
  });
  ASSERT_TRUE(come.Await(1));
  EXPECT_EQ(memory, content);
}

TEST(ProcessesTest, AFileThatIsNotThePeersIsRefused) {
  Child child([](ShmTransport&) {});
  RecordedEvents events(0);
  const std::unique_ptr<ShmTransport> transport = Make(&events);
  const auto open_child = [&] { return OpenFile(child.address.pid, child.address.fd); };
  const std::string start = "process 1 cannot be reached through shared memory: ";
  const auto refused = [&](int fd, uint64_t nonce) {
    const std::string message = transport->AddPeer(1, nonce, fd).message();
    EXPECT_EQ(message.rfind(start, 0), 0u) << message;
    return message.substr(start.size(), message.find('\n') - start.size());
  };
  EXPECT_EQ(refused(-1, 0), "its memory file is not open.");
  EXPECT_EQ(refused(open_child(), child.address.nonce + 1), "the memory file belongs to another process.");
  EXPECT_EQ(refused(OpenFile(getpid(), transport->fd()), transport->nonce()),
            "the memory file belongs to another process.");
  EXPECT_EQ(refused(open("/dev/null", O_RDWR | O_CLOEXEC), 0), "its memory file is not sealed.");
  const int small = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(refused(dup(small), 0), "its memory file is not sealed.");
  EXPECT_EQ(fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(refused(small, 0).substr(0, 35), "its memory file has 0 B instead of ");
  child.Connect(*transport);
  const Status twice = transport->AddPeer(1, child.address.nonce, open_child());
  EXPECT_EQ(twice.message(), "process 1 has been added before.");
}

TEST(ProcessesTest, AFileThatOthersHaveOpenCannotBeShrunk) {
  RecordedEvents events(0);
  const std::unique_ptr<ShmTransport> transport = Make(&events);
  EXPECT_NE(ftruncate(transport->fd(), 0), 0);
}

TEST(ProcessesTest, TooLittleMemoryIsAnError) {
  RecordedEvents events(0);
  EXPECT_EQ(ShmTransport::Create(0, 18, &events, kArena).status().message(),
            "an arena of 4 MiB does not fit process 0 of 18.\n  Cure: at least 256 KiB for each other process, at most "
            "1 TiB.");
  EXPECT_NE(ShmTransport::Create(0, 2, &events, int64_t{1} << 40)
                .status()
                .message()
                .find("cannot be reserved: the system has"),
            std::string::npos);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {kArena, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = ShmTransport::Create(0, 2, &events, kArena).status();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(status.message().find("files are limited to 4 MiB (ulimit -f)"), std::string::npos) << status.message();
  const NoThreads none;
  EXPECT_NE(ShmTransport::Create(0, 2, &events, kArena).status().message().find("no thread"), std::string::npos);
}

// Runs in a child, because a process cannot remove the filter.
TEST(ProcessesTest, ASystemWithoutMemoryFilesHasACure) {
  int from_child[2];
  ASSERT_EQ(pipe2(from_child, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {static_cast<unsigned short>(std::size(rules)), rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      _exit(0);  // the test is skipped if the child writes no text
    }
    RecordedEvents events(0);
    const std::string message = ShmTransport::Create(0, 2, &events, kArena).status().message();
    _exit(write(from_child[1], message.data(), message.size()) < 0 ? 1 : 0);
  }
  close(from_child[1]);
  char text[1024] = "";
  const ssize_t bytes = read(from_child[0], text, sizeof(text) - 1);
  close(from_child[0]);
  waitpid(child, nullptr, 0);
  if (bytes == 0) GTEST_SKIP() << "this system has no filter of system calls";
  EXPECT_NE(std::strstr(text, "memfd_create: Function not implemented.\n  Cure: have the container's"), nullptr)
      << text;
  EXPECT_NE(std::strstr(text, "JAXCOMM_TRANSPORT=tcp"), nullptr) << text;
}

TEST(ProcessesTest, NothingIsLeft) {
  const auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  const auto is_mapped = [] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:jaxcomm") != std::string::npos) return true;
    }
    return false;
  };
  const size_t before = descriptors();
  {
    ShmJob job(3, kArena);
    EXPECT_TRUE(is_mapped());
  }
  EXPECT_EQ(descriptors(), before);
  EXPECT_FALSE(is_mapped());
}

}  // namespace
}  // namespace jaxcomm
