// Starts threads that may compute for XLA.
//
//   std::optional<std::thread> thread = StartThread([this] { Work(); });   // nullopt: the system cannot start a thread
//
// The thread runs in XLA's floating-point mode, whatever the mode of its creator.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "cc/base/float_mode.h"

namespace jaxcomm {

inline std::optional<std::thread> StartThread(std::function<void()> work) {
  try {
    return std::thread([work = std::move(work)] {
      const XlaFloatMode mode;
      work();
    });
  } catch (const std::exception&) {  // the system cannot create a thread, or lacks memory for one
    return std::nullopt;
  }
}

}  // namespace jaxcomm
