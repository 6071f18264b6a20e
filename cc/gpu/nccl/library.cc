#include "cc/gpu/nccl/library.h"

#include <dlfcn.h>

namespace jaxcomm::nccl {
namespace {

Result<Library> Load(const std::string& path) {
  const auto unusable = [](const std::string& reason) { return Status(Code::kUnimplemented, "no NCCL: " + reason); };
  // Prefers a copy that is already loaded, because two copies would not know each other's communicators.
  constexpr char kSoname[] = "libnccl.so.2";
  void* handle = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(path.empty() ? kSoname : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unusable(dlerror());
  Library found;
  std::string missing;
#define JAXCOMM_TAKE(Name)                                                          \
  found.Name = reinterpret_cast<decltype(found.Name)>(dlsym(handle, "nccl" #Name)); \
  if (found.Name == nullptr) missing = "nccl" #Name;
  JAXCOMM_TAKE(GetVersion)
  JAXCOMM_TAKE(GetErrorString)
  JAXCOMM_TAKE(GetLastError)
  JAXCOMM_TAKE(GetUniqueId)
  JAXCOMM_TAKE(CommInitRank)
  JAXCOMM_TAKE(CommGetAsyncError)
  JAXCOMM_TAKE(CommAbort)
  JAXCOMM_TAKE(GroupStart)
  JAXCOMM_TAKE(GroupEnd)
  JAXCOMM_TAKE(Send)
  JAXCOMM_TAKE(Recv)
  if (!missing.empty()) return unusable("it has no " + missing);
  return found;
}

}  // namespace

Result<const Library*> Library::Open(const std::string& path) {
  static const Result<Library> opened = Load(path);
  if (!opened.ok()) return opened.status();
  return &opened.value();
}

Status Library::Check(const std::string& operation, Outcome outcome, Comm comm) const {
  if (outcome == kSuccess) return Status();
  const char* const last = GetLastError(comm);
  std::string message = operation + ": " + GetErrorString(outcome);
  if (last != nullptr && *last != '\0') message += std::string(" (") + last + ")";
  return Status(Code::kInternal, message);
}

}  // namespace jaxcomm::nccl
