// The custom call "jaxcomm_mark" returns its operands, and records the time and the device.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

struct Mark {
  int64_t name;
  int32_t device;
  Clock::time_point time;
};

class Marks {
 public:
  void Reset() {
    const std::lock_guard lock(mutex_);
    marks_.clear();
    start_ = Clock::now();
  }

  void Add(int64_t name, int32_t device) {
    const std::lock_guard lock(mutex_);
    marks_.push_back({name, device, Clock::now()});
  }

  int64_t Read(int64_t* names, int32_t* devices, double* seconds, int64_t capacity) const {
    const std::lock_guard lock(mutex_);
    const size_t count = std::min(marks_.size(), static_cast<size_t>(std::max<int64_t>(capacity, 0)));
    for (size_t i = 0; i < count; ++i) {
      names[i] = marks_[i].name;
      devices[i] = marks_[i].device;
      seconds[i] = std::chrono::duration<double>(marks_[i].time - start_).count();
    }
    return static_cast<int64_t>(marks_.size());
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Mark> marks_;
  Clock::time_point start_ = Clock::now();
};

// Never destroyed; runtime.h has the reason.
Marks& TheMarks() {
  static Marks* const marks = new Marks;
  return *marks;
}

ffi::Error HandOn(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t name) {
  TheMarks().Add(name, device);
  if (args.size() != rets.size()) return ToError(InvalidArgument("mark: operands and results differ in number"));
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    if (result.size_bytes() != operand.size_bytes()) {
      return ToError(InvalidArgument("mark: operand and result differ in size"));
    }
    if (result.untyped_data() != operand.untyped_data()) {
      std::memcpy(result.untyped_data(), operand.untyped_data(), operand.size_bytes());
    }
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kMark, HandOn, ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets().Attr<int64_t>("name"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMark(XLA_FFI_CallFrame* frame) { return kMark(frame); }

// Deletes all marks. The times of later marks count from now.
JAXCOMM_EXPORT int jaxcomm_reset_marks(JaxcommText* error) {
  return Answer(error, [] { TheMarks().Reset(); });
}

// Reads the first `room` marks since the reset, in order. `count` receives the number of all marks since the reset.
JAXCOMM_EXPORT int jaxcomm_marks(int64_t* names, int32_t* devices, double* seconds, int64_t room, int64_t* count,
                                 JaxcommText* error) {
  return Answer(error, [&] { *count = TheMarks().Read(names, devices, seconds, room); });
}

}  // namespace jaxcomm
