// Threads that may compute for XLA.
//
//   std::optional<std::thread> thread = StartThread([this] { Work(); });   // none: the system has no thread to give
//
// The thread runs in XLA's floating-point mode, independently of the mode of its creator.
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
  } catch (const std::exception&) {  // no thread, or no memory for one
    return std::nullopt;
  }
}

}  // namespace jaxcomm
