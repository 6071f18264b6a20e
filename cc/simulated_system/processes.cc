#include "cc/simulated_system/processes.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <vector>

#include "cc/simulated_system/network.h"
#include "cc/simulated_system/real.h"

namespace jaxcomm::simulated {
namespace {

std::map<int, const Process*>& Files() {
  static auto* const files = new std::map<int, const Process*>();
  return *files;
}

// Copies bytes within the memory of this system process. Returns false if the memory is not mapped.
bool Copy(void* to, void* from, size_t bytes) {
  static const auto real =
      Real<ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long)>(
          "process_vm_readv");
  static const pid_t own = Real<pid_t (*)()>("getpid")();
  const iovec mine{to, bytes}, its{from, bytes};
  return real(own, &mine, 1, &its, 1, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace

void OwnFile(int fd) {
  if (fd >= 0) Files()[fd] = Scheduler::current()->process;
}

void ForgetFile(int fd) { Files().erase(fd); }

size_t CountOpen(const Process& process) {
  const auto is_own = [&](const auto& file) { return file.second == &process; };
  return static_cast<size_t>(std::count_if(Files().begin(), Files().end(), is_own)) + Network::Get().Count(process);
}

void CloseAllOf(const Process& process) {
  static const auto real = Real<int (*)(int)>("close");
  for (auto at = Files().begin(); at != Files().end();) {
    if (at->second == &process) real(at->first);
    at = at->second == &process ? Files().erase(at) : std::next(at);
  }
  Network::Get().CloseAll(process);
}

ssize_t ReadMemory(pid_t pid, const iovec* mine, size_t own_count, const iovec* its, size_t its_count) {
  Scheduler& scheduler = Scheduler::Get();
  scheduler.Point();
  const Process* const owner = scheduler.Find(pid);
  if (own_count != its_count) scheduler.Fail("process_vm_readv with unlike vectors");
  ssize_t read = 0;
  for (size_t i = 0; i < own_count; ++i) {
    for (size_t at = 0; at < mine[i].iov_len || mine[i].iov_len == 0;) {
      if (owner == nullptr || owner->state == Process::State::kKilled) {
        errno = ESRCH;
        return read > 0 ? read : -1;
      }
      const size_t bytes = std::min(mine[i].iov_len - at, 1 + scheduler.Random(mine[i].iov_len + 1));
      if (bytes == 0) break;
      if (!Copy(static_cast<char*>(mine[i].iov_base) + at, static_cast<char*>(its[i].iov_base) + at, bytes)) {
        errno = EFAULT;
        return read > 0 ? read : -1;
      }
      at += bytes;
      read += static_cast<ssize_t>(bytes);
      scheduler.Point();
    }
  }
  return read;
}

}  // namespace jaxcomm::simulated
