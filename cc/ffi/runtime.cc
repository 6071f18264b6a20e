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

xla::ffi::Error ToError(const Status& status) {
  const std::string message = "jaxcomm: " + status.message();
  switch (status.code()) {
    case Code::kOk:
      return xla::ffi::Error::Success();
    case Code::kInvalidArgument:
      return xla::ffi::Error::InvalidArgument(message);
    case Code::kUnimplemented:
      return xla::ffi::Error(xla::ffi::ErrorCode::kUnimplemented, message);
    case Code::kDeadlineExceeded:
      return xla::ffi::Error(xla::ffi::ErrorCode::kDeadlineExceeded, message);
    case Code::kInternal:
      return xla::ffi::Error::Internal(message);
  }
  return xla::ffi::Error::Internal(message);
}

}  // namespace jaxcomm
