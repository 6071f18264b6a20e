// The process's one executor, its registries of programs and messages, its switches of plans, and what calls end in.
#pragma once

#include <exception>

#include "cc/executor/executor.h"
#include "cc/executor/plan_switches.h"
#include "cc/ffi/values.h"
#include "cc/program/message_registry.h"
#include "cc/program/registry.h"

namespace jaxcomm {

// Live until the process ends: XLA's threads may still call when static destructors run.
Executor& TheExecutor();
ProgramRegistry& ThePrograms();
MessageRegistry& TheMessages();
PlanSwitches& ThePlanSwitches();

// What keeps the promise when a call ends.
Done Keep(const xla::ffi::Promise& promise);

// Reads what a rank brings to a call between processes. Where that fails, the call's other ranks end with the error
// too.
template <typename Read>
Status ReadOrRefuse(const MessageSite& site, int64_t run, uint32_t rank, Read read) {
  Status status;
  try {
    status = read();
  } catch (const std::exception& error) {
    status = Status(Code::kInternal, site.label().name + " over '" + site.label().axes + "': " + error.what());
  }
  if (!status.ok()) TheExecutor().RefuseAcross(site, run, rank, status);
  return status;
}

// The future of a call that start(promise) begins; where that does not succeed, the future is its error.
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
