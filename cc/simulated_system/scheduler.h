// Runs the threads of simulated processes one at a time, under a virtual clock, in an order that a seed determines.
//
//   Scheduler scheduler(seed);
//   Process& process = scheduler.AddProcess("process 3");
//   scheduler.Run([&] {                                     // the calling thread is the first task
//     scheduler.Spawn(process, [] { ... });                 // real code: threads, locks, sleeps, sockets
//     scheduler.SleepUntil(scheduler.now() + 2 * kSecond);
//     scheduler.Kill(process);                              // like SIGKILL: its threads never run again
//   });
//
// A task is a simulated thread. All tasks share one thread of the system, and each has its own stack and its own copies
// of thread-local variables. The running task hands its turn to another task when it blocks, and at random in system
// calls (threads.cc and sockets.cc define these calls). If no task can run, the clock advances to the next deadline or
// event. Two runs with one seed therefore make the same history, and nothing here takes a lock.
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace jaxcomm::simulated {

using Nanoseconds = int64_t;
constexpr Nanoseconds kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;
constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
// The virtual wall clock reads this time when the history begins.
constexpr Nanoseconds kEpoch = 1700000000 * kSecond;

// Identifies an object on which tasks wait: 0 and an address, or a file and an offset in the file.
using Key = std::pair<uint64_t, uint64_t>;
inline Key KeyOf(const void* address) { return {0, reinterpret_cast<uint64_t>(address)}; }

struct Process {
  enum class State { kRuns, kStopped, kKilled };

  std::string name;
  int pid;
  State state = State::kRuns;
  bool lacks_memory = false;               // some allocations fail
  bool is_dying = false;                   // killed as soon as none of its tasks holds a lock that processes share
  std::function<void()> at_end = nullptr;  // closes the process's descriptors
};

struct Task {
  enum class State { kRunnable, kBlocked, kDone };

  Process* process;
  State state = State::kRunnable;
  Key key{};          // while blocked
  uint32_t bits = 0;  // while blocked: the bit mask, as in FUTEX_WAIT_BITSET
  Nanoseconds until = kNever;
  bool is_woken = false;         // whether Wake, not the clock, ended the wait
  int shared_locks = 0;          // number of held locks that several processes use
  int system_calls = 0;          // nesting depth of the simulated system's functions that the task has called
  bool may_lack_memory = false;  // whether the task's allocations may fail while its process lacks memory
  void* (*work)(void*) = nullptr;
  void* argument = nullptr;
  void* result = nullptr;
  ucontext_t start;        // the context of the first turn
  bool has_begun = false;  // whether the task has had its first turn
  jmp_buf turn;            // valid once the task has begun, while another task has the turn
  std::unique_ptr<std::byte[]> stack;
  std::vector<std::byte> locals;  // the thread-local variables, while another task has the turn
};

class Scheduler {
 public:
  explicit Scheduler(uint32_t seed);

  // Returns the calling thread's task, or null outside a simulation.
  static Task* current();
  // Returns the scheduler of the simulation that runs in this system process.
  static Scheduler& Get();

  void Run(const std::function<void()>& main);
  Process& AddProcess(std::string name);
  // Returns null if there has been no such process.
  Process* Find(int pid);
  // Starts a task of a process.
  void Spawn(Process& process, std::function<void()> work);
  // Like pthread_create, for a thread of the process. The thread's handle is the address of its task.
  Task* Start(Process& process, void* (*work)(void*), void* argument);
  void Join(Task* task, void** result);

  void Kill(Process& process) { process.is_dying = true; }
  // Like std::abort, for the calling task's process.
  [[noreturn]] void Abort();
  void Stop(Process& process) { process.state = Process::State::kStopped; }
  void Continue(Process& process) { process.state = Process::State::kRuns; }

  Nanoseconds now() const { return now_; }
  // The wall clock, which Jump sets.
  Nanoseconds wall() const { return now_ + wall_offset_; }
  void Jump(Nanoseconds time) { wall_offset_ += time; }
  // Returns a random number below `limit`.
  uint64_t Random(uint64_t limit) { return random_() % limit; }
  Nanoseconds RandomTime(Nanoseconds limit) { return static_cast<Nanoseconds>(Random(static_cast<uint64_t>(limit))); }
  bool Chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }

  // Lets time pass, and by chance lets another task run.
  void Point();
  // Lets another task run.
  void Yield();
  // Sets the function that runs when a process has aborted.
  void OnAbort(std::function<void(Process&)> aborted) { aborted_ = std::move(aborted); }
  // Waits until Wake is called for the key. Returns false if the time `until` is reached first.
  bool Block(Key key, Nanoseconds until = kNever, uint32_t bits = ~uint32_t{0});
  void SleepUntil(Nanoseconds until) { Block({1, 0}, until, 0); }
  // Wakes up to `most` tasks that wait on the key. Returns their number.
  int Wake(Key key, int most = std::numeric_limits<int>::max(), uint32_t bits = ~uint32_t{0});
  // Runs an event, which must not block, when the clock reads `time`.
  void At(Nanoseconds time, std::function<void()> event) { events_.emplace(time, std::move(event)); }

  // Lock, TryLock and Unlock also lock and unlock the real mutex, so that its memory is as the C library expects. No
  // system thread ever waits for the real mutex.
  void Lock(pthread_mutex_t* mutex);
  int TryLock(pthread_mutex_t* mutex);
  void Unlock(pthread_mutex_t* mutex);

  // Ends this system process and prints `why`, because the history shows an error in the tested code.
  [[noreturn]] void Fail(const std::string& why);
  // Adds a line to the history, which TRACE=1 prints.
  void Trace(const std::string& line);
  // Returns a hash of the order in which tasks ran. Two runs with one seed return the same hash.
  uint64_t hash() const { return hash_; }
  uint64_t switches() const { return switches_; }

  static constexpr uint64_t kMostSwitches = 3000000;

 private:
  struct Held {
    Process* first;  // the process that used the lock first; null if several processes use it
    Task* holder;
  };

  static void Enter();
  void RunEvents();
  Task* Pick();
  void Give(Task* next);

  // The thread-local variables of the program, and their initial values.
  std::byte* locals_ = nullptr;
  std::vector<std::byte> first_locals_;
  std::mt19937_64 random_;
  const uint64_t calm_;  // a system call gives the turn to another task with the probability 1 / calm_
  Nanoseconds now_ = 0, wall_offset_ = kEpoch;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::multimap<Nanoseconds, std::function<void()>> events_;
  std::unordered_map<pthread_mutex_t*, Held> locks_;
  std::vector<Task*> runnable_;  // used by Pick
  std::function<void(Process&)> aborted_;
  uint64_t switches_ = 0, hash_ = 0;
  const bool traces_;
};

// While this object lives, the calling task is inside the simulated system, whose own allocations never fail.
class InSystem {
 public:
  InSystem() : task_(Scheduler::current()) {
    if (task_ != nullptr) ++task_->system_calls;
  }
  ~InSystem() {
    if (task_ != nullptr) --task_->system_calls;
  }
  InSystem(const InSystem&) = delete;
  InSystem& operator=(const InSystem&) = delete;

 private:
  Task* const task_;
};

}  // namespace jaxcomm::simulated
