// The process's one executor, its registry of programs, and what its calls end in.
#pragma once

#include "cc/executor/executor.h"
#include "cc/ffi/values.h"
#include "cc/program/registry.h"

namespace jaxcomm {

// Live until the process ends: XLA's threads may still call when static destructors run.
Executor& TheExecutor();
ProgramRegistry& ThePrograms();

// What keeps the promise when a call ends.
Done Keep(const xla::ffi::Promise& promise);

}  // namespace jaxcomm
