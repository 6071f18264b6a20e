// Allocations of the simulated processes. While a process lacks memory, some of them fail, as in the core's operator
// new fails.
#include <cstdlib>
#include <new>

#include "cc/base/small_block.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {
namespace {

constexpr uint64_t kOneOf = 100;  // one of so many allocations of a small block fails

bool Fails(std::size_t bytes) {
  const Task* const task = Scheduler::current();
  if (task == nullptr || !task->may_lack_memory || !task->process->lacks_memory || task->system_calls > 0) return false;
  return Scheduler::Get().Random(bytes < kSmallBlock ? kOneOf : 2) == 0;
}

void* Allocate(std::size_t bytes) {
  const bool fails = Fails(bytes);
  if (fails && bytes < kSmallBlock) Scheduler::Get().Abort();
  void* const block = fails ? nullptr : std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace
}  // namespace jaxcomm::simulated

void* operator new(std::size_t bytes) { return jaxcomm::simulated::Allocate(bytes); }
void* operator new[](std::size_t bytes) { return jaxcomm::simulated::Allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
