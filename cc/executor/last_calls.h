// The call to which each device came last, of whichever process, for errors.
//
//   last.Add(device, {id, "psum over 'data', …", Clock::now()});
//   const LastCall* call = last.Find(device);   // null: it has come to none
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "cc/executor/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct LastCall {
  CallId id;
  std::string text;
  Clock::time_point at;
};

class LastCalls {
 public:
  void Add(uint32_t device, LastCall call) {
    if (calls_.size() < kDevices || calls_.count(device) > 0) calls_[device] = std::move(call);
  }
  const LastCall* Find(uint32_t device) const {
    const auto at = calls_.find(device);
    return at == calls_.end() ? nullptr : &at->second;
  }

 private:
  static constexpr size_t kDevices = 1 << 16;

  std::map<uint32_t, LastCall> calls_;
};

}  // namespace jaxcomm
