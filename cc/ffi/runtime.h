// The process's executor, its registries of programs and messages, and the futures of its calls.
#pragma once

#include <exception>

#include "cc/executor/executor.h"
#include "cc/ffi/values.h"
#include "cc/program/message_registry.h"
#include "cc/program/registry.h"

namespace jaxcomm {

// These three objects are never destroyed, because XLA's threads may use them while static destructors run.
Executor& TheExecutor();
ProgramRegistry& ThePrograms();
MessageRegistry& TheMessages();

// Returns a callback for the end of a call. The callback completes the promise.
Done Keep(const xla::ffi::Promise& promise);

// Returns the future of the call that start(promise) begins. If start fails, the future gets the error of start.
template <typename Start>
xla::ffi::Future Begin(Start start) {
  xla::ffi::Promise promise;
  xla::ffi::Future future(promise);
  try {
    const Status status = start(promise);
    if (!status.ok()) promise.SetError(ToError(status));
  } catch (const std::exception& error) {
    promise.SetError(ToError(Status(Code::kInternal, error.what())));
  }
  return future;
}

}  // namespace jaxcomm
