// Calls the system's own version of a function that this folder defines.
//
//   static const auto real = Real<int (*)(int)>("close");
#pragma once

#include <dlfcn.h>

namespace jaxcomm::simulated {

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace jaxcomm::simulated

// Defines a function of the C library. Outside a simulation it calls the library's own function, `real`.
#define JAXCOMM_SYSTEM_CALL(result, name, parameters, ...)                             \
  extern "C" __attribute__((visibility("default"))) result name parameters {           \
    static const auto real = jaxcomm::simulated::Real<result(*) parameters>(#name);    \
    if (jaxcomm::simulated::Scheduler::current() == nullptr) return real(__VA_ARGS__); \
    const jaxcomm::simulated::InSystem in_system;
