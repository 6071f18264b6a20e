// Allocations of the simulated processes. While a process lacks memory, some of its allocations fail as in the core's
// operator new: a failed small allocation aborts the process, and a failed large allocation throws.
#include <cstdlib>
#include <new>

#include "cc/base/small_block.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {
namespace {

constexpr uint64_t kOneOf = 100;  // one in kOneOf allocations of small blocks fails

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

// Allocations with a strict alignment hold messages. They never count as small blocks, even if the message is small.
void* AllocateAligned(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const block = Fails(kSmallBlock) ? nullptr : std::aligned_alloc(alignment, rounded);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace
}  // namespace jaxcomm::simulated

void* operator new(std::size_t bytes) { return jaxcomm::simulated::Allocate(bytes); }
void* operator new[](std::size_t bytes) { return jaxcomm::simulated::Allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return jaxcomm::simulated::AllocateAligned(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
