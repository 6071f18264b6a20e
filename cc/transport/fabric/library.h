// The library libfabric, which is loaded when it is first needed.
//
//   const Result<Libfabric>& library = Libfabric::Get();   // an error if this machine has no usable libfabric
//   if (library.ok()) library.value().fabric(attributes, &fabric, nullptr);
//
// Thread-safe. The struct lacks the functions that libfabric's headers define inline.
#pragma once

#include <rdma/fabric.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm {

struct Libfabric {
  // Loads the library in the first call. The result is never destroyed.
  static const Result<Libfabric>& Get();

  // Returns the interface version to pass to getinfo: the version of the vendored headers, or the library's version if
  // the library is older.
  uint32_t api() const;
  // Returns libfabric's text for an error, which may be negative.
  std::string Describe(int64_t error) const;

  int (*getinfo)(uint32_t, const char*, const char*, uint64_t, const fi_info*, fi_info**) = nullptr;
  void (*freeinfo)(fi_info*) = nullptr;
  fi_info* (*dupinfo)(const fi_info*) = nullptr;
  int (*fabric)(fi_fabric_attr*, fid_fabric**, void*) = nullptr;
  uint32_t (*version)() = nullptr;
  const char* (*strerror)(int) = nullptr;
};

// Restores all signal handlers of the process at the end of a scope. Some of libfabric's providers replace the handlers
// of SIGSEGV, SIGINT, SIGTERM and others when they are loaded.
class KeptSignalHandlers {
 public:
  KeptSignalHandlers();
  KeptSignalHandlers(const KeptSignalHandlers&) = delete;
  ~KeptSignalHandlers();

 private:
  std::array<struct sigaction, NSIG> handlers_{};
};

}  // namespace jaxcomm
