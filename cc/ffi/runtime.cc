#include "cc/ffi/runtime.h"

#include <algorithm>
#include <memory>
#include <thread>

namespace jaxcomm {

Executor& TheExecutor() {
  static Executor* executor = std::make_unique<Executor>(std::max(1u, std::thread::hardware_concurrency())).release();
  return *executor;
}

ProgramRegistry& ThePrograms() {
  static ProgramRegistry* programs = std::make_unique<ProgramRegistry>().release();
  return *programs;
}

}  // namespace jaxcomm
