#include "cc/ffi/runtime.h"

#include <memory>

#include "cc/executor/threads/worker_pool.h"

namespace jaxcomm {

Executor& TheExecutor() {
  static Executor* executor = std::make_unique<Executor>(WorkerPool::ThreadsOfProcess()).release();
  return *executor;
}

ProgramRegistry& ThePrograms() {
  static ProgramRegistry* programs = std::make_unique<ProgramRegistry>().release();
  return *programs;
}

MessageRegistry& TheMessages() {
  static MessageRegistry* messages = std::make_unique<MessageRegistry>().release();
  return *messages;
}

Done Keep(const xla::ffi::Promise& promise) {
  return [promise](const Status& end) {
    xla::ffi::Promise mine = promise;
    if (end.ok()) {
      mine.SetAvailable();
    } else {
      mine.SetError(ToError(end));
    }
  };
}

}  // namespace jaxcomm
