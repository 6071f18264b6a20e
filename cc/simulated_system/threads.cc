// The C library's functions for threads, locks and time, as simulated tasks see them.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <map>

#include "cc/simulated_system/real.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {
namespace {

// A mapping of a file that several processes share. Each process maps the file at its own address.
struct Mapping {
  uint64_t bytes, file, offset;
};

std::map<uint64_t, Mapping>& Mappings() {
  static auto* const mappings = new std::map<uint64_t, Mapping>();
  return *mappings;
}

Key SharedKeyOf(const void* address) {
  const auto at = reinterpret_cast<uint64_t>(address);
  const auto after = Mappings().upper_bound(at);
  if (after == Mappings().begin()) return KeyOf(address);
  const auto& [start, mapping] = *std::prev(after);
  if (at >= start + mapping.bytes) return KeyOf(address);
  return {mapping.file, mapping.offset + at - start};
}

Nanoseconds TimeOf(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }
timespec TimeOf(Nanoseconds time) { return {time / kSecond, time % kSecond}; }
// Converts a time of the given clock to virtual time.
Nanoseconds TimeOn(clockid_t clock, const timespec& time) {
  const Scheduler& scheduler = Scheduler::Get();
  return clock == CLOCK_REALTIME ? TimeOf(time) - scheduler.wall() + scheduler.now() : TimeOf(time);
}

int WaitOn(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds until) {
  Scheduler& scheduler = Scheduler::Get();
  // A condition variable may wake a thread without a reason.
  const bool is_spurious = scheduler.Random(200) == 0;
  if (is_spurious) until = std::min(until, scheduler.now() + static_cast<Nanoseconds>(scheduler.Random(kMillisecond)));
  scheduler.Unlock(mutex);
  const bool is_woken = scheduler.Block(KeyOf(condition), until);
  scheduler.Lock(mutex);
  return is_woken || is_spurious ? 0 : ETIMEDOUT;
}

long WaitOrWake(uint32_t* word, int operation, uint32_t value, const timespec* timeout, uint32_t bits) {
  Scheduler& scheduler = Scheduler::Get();
  const Key key = SharedKeyOf(word);
  scheduler.Point();
  const int command = operation & FUTEX_CMD_MASK;
  if (command == FUTEX_WAKE) return scheduler.Wake(key, static_cast<int>(value));
  if (command == FUTEX_WAKE_BITSET) return scheduler.Wake(key, static_cast<int>(value), bits);
  if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET) scheduler.Fail("unknown futex operation");
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
    errno = EAGAIN;
    return -1;
  }
  Nanoseconds until = kNever;
  if (timeout != nullptr && command == FUTEX_WAIT) until = scheduler.now() + TimeOf(*timeout);
  if (timeout != nullptr && command == FUTEX_WAIT_BITSET) {
    until = TimeOn((operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC, *timeout);
  }
  if (scheduler.Block(key, until, command == FUTEX_WAIT ? ~uint32_t{0} : bits)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

// The states of pthread_once_t in the C library.
constexpr int kOnceRuns = 1, kOnceDone = 2;

}  // namespace
}  // namespace jaxcomm::simulated

namespace simulated = jaxcomm::simulated;
using jaxcomm::simulated::Key;
using jaxcomm::simulated::KeyOf;
using jaxcomm::simulated::kNever;
using jaxcomm::simulated::Nanoseconds;
using jaxcomm::simulated::Real;
using jaxcomm::simulated::Scheduler;

JAXCOMM_SYSTEM_CALL(int, pthread_mutex_lock, (pthread_mutex_t * mutex), mutex)
Scheduler::Get().Lock(mutex);
return 0;
}

JAXCOMM_SYSTEM_CALL(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), mutex)
Scheduler::Get().Point();
return Scheduler::Get().TryLock(mutex);
}

JAXCOMM_SYSTEM_CALL(int, pthread_mutex_unlock, (pthread_mutex_t * mutex), mutex)
Scheduler::Get().Unlock(mutex);
return 0;
}

JAXCOMM_SYSTEM_CALL(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t* mutex), condition, mutex)
return jaxcomm::simulated::WaitOn(condition, mutex, kNever);
}

JAXCOMM_SYSTEM_CALL(int, pthread_cond_clockwait,
                    (pthread_cond_t * condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until),
                    condition, mutex, clock, until)
return jaxcomm::simulated::WaitOn(condition, mutex, jaxcomm::simulated::TimeOn(clock, *until));
}

JAXCOMM_SYSTEM_CALL(int, pthread_cond_timedwait,
                    (pthread_cond_t * condition, pthread_mutex_t* mutex, const timespec* until), condition, mutex,
                    until)
return jaxcomm::simulated::WaitOn(condition, mutex, jaxcomm::simulated::TimeOn(CLOCK_REALTIME, *until));
}

JAXCOMM_SYSTEM_CALL(int, pthread_cond_signal, (pthread_cond_t * condition), condition)
Scheduler::Get().Wake(KeyOf(condition), 1);
return 0;
}

JAXCOMM_SYSTEM_CALL(int, pthread_cond_broadcast, (pthread_cond_t * condition), condition)
Scheduler::Get().Wake(KeyOf(condition));
return 0;
}

JAXCOMM_SYSTEM_CALL(int, pthread_once, (pthread_once_t * control, void (*routine)()), control, routine)
while (*control == simulated::kOnceRuns) Scheduler::Get().Block(KeyOf(control));
if (*control == simulated::kOnceDone) return 0;
*control = simulated::kOnceRuns;
try {
  routine();
} catch (...) {
  *control = 0;
  Scheduler::Get().Wake(KeyOf(control));
  throw;
}
*control = simulated::kOnceDone;
Scheduler::Get().Wake(KeyOf(control));
return 0;
}

JAXCOMM_SYSTEM_CALL(int, pthread_create,
                    (pthread_t * thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument),
                    thread, attributes, work, argument)
Scheduler& scheduler = Scheduler::Get();
simulated::Task* const started = scheduler.Start(*Scheduler::current()->process, work, argument);
started->may_lack_memory = true;
*thread = reinterpret_cast<pthread_t>(started);
scheduler.Point();
return 0;
}

JAXCOMM_SYSTEM_CALL(int, pthread_join, (pthread_t thread, void** result), thread, result)
Scheduler::Get().Join(reinterpret_cast<simulated::Task*>(thread), result);
return 0;
}

JAXCOMM_SYSTEM_CALL(pthread_t, pthread_self, (), )
return reinterpret_cast<pthread_t>(Scheduler::current());
}

JAXCOMM_SYSTEM_CALL(int, sched_yield, (), )
Scheduler::Get().SleepUntil(Scheduler::Get().now() + 200 + static_cast<Nanoseconds>(Scheduler::Get().Random(2000)));
return 0;
}

JAXCOMM_SYSTEM_CALL(int, clock_gettime, (clockid_t clock, timespec* time), clock, time)
Scheduler::Get().Point();
*time = simulated::TimeOf(clock == CLOCK_REALTIME ? Scheduler::Get().wall() : Scheduler::Get().now());
return 0;
}

JAXCOMM_SYSTEM_CALL(int, nanosleep, (const timespec* time, timespec* left), time, left)
Scheduler::Get().SleepUntil(Scheduler::Get().now() + jaxcomm::simulated::TimeOf(*time));
return 0;
}

JAXCOMM_SYSTEM_CALL(int, clock_nanosleep, (clockid_t clock, int flags, const timespec* time, timespec* left), clock,
                    flags, time, left)
const Nanoseconds given = jaxcomm::simulated::TimeOn(clock, *time);
const Nanoseconds until = flags == TIMER_ABSTIME ? given : Scheduler::Get().now() + jaxcomm::simulated::TimeOf(*time);
Scheduler::Get().SleepUntil(until);
return 0;
}

JAXCOMM_SYSTEM_CALL(ssize_t, getrandom, (void* bytes, size_t size, unsigned flags), bytes, size, flags)
for (size_t i = 0; i < size; ++i) {
  static_cast<unsigned char*>(bytes)[i] = static_cast<unsigned char>(Scheduler::Get().Random(256));
}
return static_cast<ssize_t>(size);
}

JAXCOMM_SYSTEM_CALL(int, get_nprocs, (), )
return 4;
}

JAXCOMM_SYSTEM_CALL(pid_t, getpid, (), )
return Scheduler::current()->process->pid;
}

extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  static const auto real = Real<long (*)(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (Scheduler::current() != nullptr && number == SYS_futex) {
    const simulated::InSystem in_system;
    return jaxcomm::simulated::WaitOrWake(
        reinterpret_cast<uint32_t*>(arguments[0]), static_cast<int>(arguments[1]), static_cast<uint32_t>(arguments[2]),
        reinterpret_cast<const timespec*>(arguments[3]), static_cast<uint32_t>(arguments[5]));
  }
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

extern "C" __attribute__((visibility("default"))) void* mmap(void* start, size_t bytes, int protection, int flags,
                                                             int fd, off_t offset) noexcept {
  static const auto real = Real<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  const simulated::InSystem in_system;
  if (Scheduler::current() != nullptr) flags &= ~MAP_POPULATE;  // most pages of a history are never used
  void* const mapped = real(start, bytes, protection, flags, fd, offset);
  struct stat file;
  if (Scheduler::current() != nullptr && mapped != MAP_FAILED && (flags & MAP_SHARED) != 0 && fstat(fd, &file) == 0) {
    jaxcomm::simulated::Mappings()[reinterpret_cast<uint64_t>(mapped)] = {bytes, file.st_ino,
                                                                          static_cast<uint64_t>(offset)};
  }
  return mapped;
}

JAXCOMM_SYSTEM_CALL(int, fallocate, (int fd, int mode, off_t offset, off_t bytes), fd, mode, offset, bytes)
return ftruncate(fd, offset + bytes);
}

extern "C" __attribute__((visibility("default"))) int munmap(void* start, size_t bytes) noexcept {
  static const auto real = Real<int (*)(void*, size_t)>("munmap");
  if (Scheduler::current() != nullptr) jaxcomm::simulated::Mappings().erase(reinterpret_cast<uint64_t>(start));
  return real(start, bytes);
}
