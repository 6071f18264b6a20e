// Without this line, longjmp would be the C library's checked version, which refuses to jump from one stack to another.
#undef _FORTIFY_SOURCE
#include "cc/simulated_system/scheduler.h"

#include <cxxabi.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cc/simulated_system/real.h"

namespace jaxcomm::simulated {
namespace {

Task* current_task = nullptr;
Scheduler* the_scheduler = nullptr;

constexpr size_t kStackBytes = 256 << 10;

// A thread's exception state in the C++ runtime.
struct Exceptions {
  void* caught;
  unsigned uncaught;
};

Exceptions& TheExceptions() { return *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals()); }

// Switches from `own` to `next`, and returns when `own` has the turn again. Unlike swapcontext, it makes a system call
// only in a task's first turn.
[[gnu::noinline]] void Switch(Task& own, Task& next) {
  if (_setjmp(own.turn) != 0) return;
  if (next.has_begun) _longjmp(next.turn, 1);
  next.has_begun = true;
  setcontext(&next.start);
}

// Finds the thread-local variables of the program. dl_iterate_phdr passes the program as the first object.
int FindLocals(dl_phdr_info* object, size_t, void* found) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type != PT_TLS) continue;
    *static_cast<std::pair<void*, size_t>*>(found) = {object->dlpi_tls_data, object->dlpi_phdr[i].p_memsz};
  }
  return 1;
}

}  // namespace

Scheduler::Scheduler(uint32_t seed)
    : random_(seed), calm_(2 + random_() % 30), traces_(std::getenv("TRACE") != nullptr) {
  the_scheduler = this;
}

void Scheduler::Abort() {
  const InSystem system;
  const auto is_own = [](const auto& lock) { return lock.second.holder == current_task; };
  for (auto held = locks_.begin(); (held = std::find_if(held, locks_.end(), is_own)) != locks_.end();) {
    Unlock(held->first);  // other simulated processes may use this lock, unlike real processes
  }
  aborted_(*current_task->process);
  Block({1, 1});
  Fail("a process goes on after it has aborted");
}

Task* Scheduler::current() { return current_task; }
Scheduler& Scheduler::Get() { return *the_scheduler; }

void Scheduler::Run(const std::function<void()>& main) {
  std::pair<void*, size_t> locals{nullptr, 0};
  dl_iterate_phdr(FindLocals, &locals);
  locals_ = static_cast<std::byte*>(locals.first);
  first_locals_.assign(locals_, locals_ + locals.second);
  tasks_.push_back(std::make_unique<Task>());
  tasks_.back()->process = &AddProcess("test");
  tasks_.back()->locals = first_locals_;
  tasks_.back()->has_begun = true;
  current_task = tasks_.back().get();
  main();
  current_task = nullptr;
}

Process& Scheduler::AddProcess(std::string name) {
  processes_.push_back(std::make_unique<Process>());
  processes_.back()->name = std::move(name);
  processes_.back()->pid = 1000000 + static_cast<int>(processes_.size());
  return *processes_.back();
}

Process* Scheduler::Find(int pid) {
  const auto found =
      std::find_if(processes_.begin(), processes_.end(), [&](const auto& each) { return each->pid == pid; });
  return found == processes_.end() ? nullptr : found->get();
}

void Scheduler::Spawn(Process& process, std::function<void()> work) {
  const auto run = [](void* argument) -> void* {
    const std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(argument));
    (*work)();
    return nullptr;
  };
  Start(process, run, std::make_unique<std::function<void()>>(std::move(work)).release());
}

Task* Scheduler::Start(Process& process, void* (*work)(void*), void* argument) {
  tasks_.push_back(std::make_unique<Task>());
  Task* const task = tasks_.back().get();
  task->process = &process;
  task->work = work;
  task->argument = argument;
  task->stack.reset(new std::byte[kStackBytes]);  // not zeroed, because most of its pages are never used
  task->locals = first_locals_;
  getcontext(&task->start);
  task->start.uc_stack.ss_sp = task->stack.get();
  task->start.uc_stack.ss_size = kStackBytes;
  makecontext(&task->start, &Scheduler::Enter, 0);
  return task;
}

void Scheduler::Enter() {
  Task* const task = current_task;
  task->result = task->work(task->argument);
  task->state = Task::State::kDone;
  Scheduler& scheduler = Get();
  scheduler.Wake(KeyOf(task));
  scheduler.Give(scheduler.Pick());
}

void Scheduler::Join(Task* task, void** result) {
  while (task->state != Task::State::kDone) Block(KeyOf(task));
  if (result != nullptr) *result = task->result;
  const auto is_task = [&](const std::unique_ptr<Task>& each) { return each.get() == task; };
  tasks_.erase(std::find_if(tasks_.begin(), tasks_.end(), is_task));
}

void Scheduler::Point() {
  now_ += 1 + static_cast<Nanoseconds>(Random(300));
  if (Random(calm_) == 0) Yield();
}

void Scheduler::Yield() {
  const InSystem system;
  now_ += 1;
  Give(Pick());
}

bool Scheduler::Block(Key key, Nanoseconds until, uint32_t bits) {
  const InSystem system;
  Task& task = *current_task;
  task.state = Task::State::kBlocked;
  task.key = key;
  task.until = until;
  task.bits = bits;
  task.is_woken = false;
  Give(Pick());
  return task.is_woken;
}

int Scheduler::Wake(Key key, int most, uint32_t bits) {
  int woken = 0;
  std::vector<Task*> waiting;
  for (const std::unique_ptr<Task>& task : tasks_) {
    if (task->state != Task::State::kBlocked || task->key != key || (task->bits & bits) == 0) continue;
    if (task->process->state != Process::State::kKilled) waiting.push_back(task.get());
  }
  for (; woken < most && !waiting.empty(); ++woken) {
    const auto at = waiting.begin() + static_cast<ptrdiff_t>(Random(waiting.size()));
    (*at)->state = Task::State::kRunnable;
    (*at)->is_woken = true;
    waiting.erase(at);
  }
  return woken;
}

void Scheduler::Lock(pthread_mutex_t* mutex) {
  Point();
  while (TryLock(mutex) == EBUSY) Block(KeyOf(mutex));
}

int Scheduler::TryLock(pthread_mutex_t* mutex) {
  static const auto real = Real<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  Held& held = locks_.try_emplace(mutex, Held{current_task->process, nullptr}).first->second;
  if (held.first != nullptr && held.first != current_task->process) {
    held.first = nullptr;
    if (held.holder != nullptr) ++held.holder->shared_locks;
  }
  const int error = real(mutex);
  if (error == 0) {
    held.holder = current_task;
    if (held.first == nullptr) ++current_task->shared_locks;
  }
  return error;
}

void Scheduler::Unlock(pthread_mutex_t* mutex) {
  static const auto real = Real<int (*)(pthread_mutex_t*)>("pthread_mutex_unlock");
  const auto held = locks_.find(mutex);
  if (held != locks_.end() && held->second.holder == current_task) {
    if (held->second.first == nullptr) --current_task->shared_locks;
    held->second.holder = nullptr;
  }
  real(mutex);
  Wake(KeyOf(mutex), 1);
}

void Scheduler::RunEvents() {
  while (!events_.empty() && events_.begin()->first <= now_) {
    const std::function<void()> event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    event();
  }
  for (const std::unique_ptr<Process>& process : processes_) {
    if (!process->is_dying || process->state == Process::State::kKilled) continue;
    const auto holds = [&](const auto& task) { return task->process == process.get() && task->shared_locks > 0; };
    if (std::any_of(tasks_.begin(), tasks_.end(), holds)) {
      process->state = Process::State::kRuns;  // a stopped process continues until it has released its locks
      continue;
    }
    process->state = Process::State::kKilled;
    if (process->at_end) process->at_end();
  }
}

// Returns the task that runs next. Advances the clock if no task can run now.
Task* Scheduler::Pick() {
  if (++switches_ > kMostSwitches) Fail("the history does not end");
  for (;;) {
    RunEvents();
    runnable_.clear();
    Nanoseconds next = events_.empty() ? kNever : events_.begin()->first;
    for (const std::unique_ptr<Task>& task : tasks_) {
      if (task->state == Task::State::kDone || task->process->state != Process::State::kRuns) continue;
      if (task->state == Task::State::kBlocked && task->until <= now_) task->state = Task::State::kRunnable;
      if (task->state == Task::State::kRunnable) {
        runnable_.push_back(task.get());
      } else {
        next = std::min(next, task->until);
      }
    }
    if (!runnable_.empty()) {
      const uint64_t picked = Random(runnable_.size());
      hash_ = (hash_ ^ picked ^ static_cast<uint64_t>(now_)) * 0x9E3779B97F4A7C15u;
      return runnable_[picked];
    }
    if (next == kNever) Fail("all threads wait for ever");
    now_ = std::max(now_, next);
  }
}

void Scheduler::Give(Task* next) {
  Task* const own = current_task;
  if (next == own) return;
  const int error = errno;
  const Exceptions exceptions = std::exchange(TheExceptions(), Exceptions{});
  std::memcpy(own->locals.data(), locals_, own->locals.size());
  std::memcpy(locals_, next->locals.data(), next->locals.size());
  current_task = next;
  Switch(*own, *next);
  TheExceptions() = exceptions;
  errno = error;
}

void Scheduler::Fail(const std::string& why) {
  std::fprintf(stderr, "at %.9f s: %s\n", static_cast<double>(now_) * 1e-9, why.c_str());
  std::fflush(stderr);
  _exit(1);
}

void Scheduler::Trace(const std::string& line) {
  if (traces_)
    std::fprintf(stderr, "%.9f %s: %s\n", static_cast<double>(now_) * 1e-9,
                 current_task ? current_task->process->name.c_str() : "-", line.c_str());
}

}  // namespace jaxcomm::simulated
