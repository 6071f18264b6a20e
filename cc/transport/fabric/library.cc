#include "cc/transport/fabric/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace jaxcomm {
namespace {

constexpr char kName[] = "libfabric.so.1";  // the same for all versions since 1.0
constexpr char kCure[] = "install libfabric (Debian: apt install libfabric1) on every host";

Result<Libfabric> Load() {
  const KeptSignalHandlers kept;
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return InvalidArgument(std::string(dlerror()) + ".\n  Cure: " + kCure);
  Libfabric library;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    return function != nullptr;
  };
  const bool has_all = find(library.getinfo, "fi_getinfo") && find(library.freeinfo, "fi_freeinfo") &&
                       find(library.dupinfo, "fi_dupinfo") && find(library.fabric, "fi_fabric") &&
                       find(library.version, "fi_version") && find(library.strerror, "fi_strerror");
  if (!has_all) return InvalidArgument(std::string(kName) + " lacks functions.\n  Cure: " + kCure);
  return library;
}

}  // namespace

const Result<Libfabric>& Libfabric::Get() {
  static const Result<Libfabric>* const library = std::make_unique<Result<Libfabric>>(Load()).release();
  return *library;
}

uint32_t Libfabric::api() const {
  return std::min<uint32_t>(version(), FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION));
}

std::string Libfabric::Describe(int64_t error) const { return strerror(static_cast<int>(error < 0 ? -error : error)); }

KeptSignalHandlers::KeptSignalHandlers() {
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, nullptr, &handlers_[static_cast<size_t>(signal)]);
}

KeptSignalHandlers::~KeptSignalHandlers() {
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &handlers_[static_cast<size_t>(signal)], nullptr);
}

}  // namespace jaxcomm
