#include "cc/gpu/nccl/library.h"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <utility>

namespace jaxcomm::nccl {
namespace {

constexpr char kSoname[] = "libnccl.so.2";

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Status Unusable(const std::string& reason) { return Status(Code::kUnimplemented, "no NCCL: " + reason); }

Result<Library> Table(void* handle, const std::string& path) {
  Library found;
  found.path = path;
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto* function) {
    if (!Find(handle, name, function) && missing == nullptr) missing = name;
  };
  need("ncclGetVersion", &found.GetVersion);
  if (missing == nullptr && found.GetVersion(&found.version) == kSuccess && found.version < kLeastVersion) {
    return Unusable(path + " is of version " + found.VersionText() + "; 2.28 or later is needed");
  }
  need("ncclGetErrorString", &found.GetErrorString);
  need("ncclGetUniqueId", &found.GetUniqueId);
  need("ncclCommInitRankConfig", &found.CommInitRankConfig);
  need("ncclCommGetAsyncError", &found.CommGetAsyncError);
  need("ncclCommAbort", &found.CommAbort);
  need("ncclGroupStart", &found.GroupStart);
  need("ncclGroupEnd", &found.GroupEnd);
  need("ncclSend", &found.Send);
  need("ncclRecv", &found.Recv);
  need("ncclAllGather", &found.AllGather);
  if (missing != nullptr) return Unusable(path + " has no " + missing);
  Find(handle, "ncclGetLastError", &found.GetLastError);
  return found;
}

}  // namespace

Result<Library> Library::Load(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unusable(dlerror());
  return Table(handle, path);
}

Result<const Library*> Library::Open(const std::string& path) {
  static std::mutex mutex;
  static std::unique_ptr<const Result<Library>> opened;
  std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    // The copy that is there wins: two would not know of each other's communicators.
    void* const loaded = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    opened =
        std::make_unique<const Result<Library>>(loaded ? Table(loaded, kSoname) : Load(path.empty() ? kSoname : path));
  }
  if (!opened->ok()) return opened->status();
  return &opened->value();
}

std::string Library::VersionText() const {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status Library::Error(const std::string& operation, Outcome outcome, Comm comm) const {
  const char* const words = GetErrorString(outcome);
  const char* const last = GetLastError != nullptr ? GetLastError(comm) : nullptr;
  std::string message = operation + ": " + (words != nullptr ? words : "unknown error");
  if (last != nullptr && *last != '\0') message += std::string(" (") + last + ")";
  return Status(Code::kInternal, std::move(message));
}

}  // namespace jaxcomm::nccl
