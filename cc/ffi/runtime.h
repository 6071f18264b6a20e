// The process's one executor and its registry of programs; how a Status becomes an XLA error, and XLA's types ours.
#pragma once

#include <optional>

#include "cc/base/status.h"
#include "cc/executor/executor.h"
#include "cc/kernels/reduce.h"
#include "cc/program/registry.h"
#include "xla/ffi/api/ffi.h"

// What the Python side looks up in the shared object; everything else is hidden.
#define JAXCOMM_EXPORT extern "C" __attribute__((visibility("default")))

namespace jaxcomm {

// Live until the process ends: XLA's threads may still call when static destructors run.
Executor& TheExecutor();
ProgramRegistry& ThePrograms();

xla::ffi::Error ToError(const Status& status);

// What keeps the promise when a call ends.
Done Keep(const xla::ffi::Promise& promise);

// None: the kernels do not have this element type.
std::optional<DType> ParseDType(xla::ffi::DataType dtype);

}  // namespace jaxcomm
