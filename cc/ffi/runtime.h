// The process's one executor and its registry of programs.
#pragma once

#include "cc/executor/executor.h"
#include "cc/ffi/values.h"
#include "cc/program/registry.h"

namespace jaxcomm {

// Live until the process ends: XLA's threads may still call when static destructors run.
Executor& TheExecutor();
ProgramRegistry& ThePrograms();

}  // namespace jaxcomm
