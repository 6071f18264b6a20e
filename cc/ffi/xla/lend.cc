// What jaxcomm_cuda13_xla.so does: it borrows XLA's own communicators, by XLA's extension for collectives.
//
// Only its C interface is used, of which any later version is fine that has the same major number.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cc/ffi/lender.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/collectives_c_api.h"

namespace jaxcomm {
namespace {

// Our calls have communicators to themselves: XLA's own collectives may be under way on another stream.
constexpr int64_t kOurs = 0x6a636f6d;

// What XLA says, and no more of the error.
std::string Take(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  XLA_FFI_Error_GetDetails_Args asked{};
  asked.struct_size = XLA_FFI_Error_GetDetails_Args_STRUCT_SIZE;
  asked.error = error;
  api->XLA_FFI_Error_GetDetails(&asked);
  const std::string message = asked.message;
  XLA_FFI_Error_Destroy_Args done{};
  done.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  done.error = error;
  api->XLA_FFI_Error_Destroy(&done);
  return message;
}

// The extension of this call, or null and why there is none.
const XLA_FFI_Collectives_Extension* Find(const XLA_FFI_CallFrame* frame, std::string& why) {
  XLA_FFI_InvokeContext_FindExtension_Args asked{};
  if (frame->api->struct_size < offsetof(XLA_FFI_Api, XLA_FFI_InvokeContext_FindExtension) + sizeof(void*)) {
    why = "this XLA has no extensions";
    return nullptr;
  }
  asked.struct_size = XLA_FFI_InvokeContext_FindExtension_Args_STRUCT_SIZE;
  asked.ctx = frame->ctx;
  asked.extension_type = XLA_FFI_Extension_Collectives;
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_InvokeContext_FindExtension(&asked)) {
    why = Take(frame->api, error);
    return nullptr;
  }
  if (asked.extension == nullptr) {
    why = "this XLA has no extension for collectives";
    return nullptr;
  }
  const XLA_FFI_ExtensionId& id = asked.extension->id;
  if (id.major_version != XLA_FFI_Extension_Collectives_MajorVersion || id.minor_version < 1) {
    why = "XLA's extension for collectives is of version " + std::to_string(id.major_version) + "." +
          std::to_string(id.minor_version) + "; this build of jaxcomm knows " +
          std::to_string(XLA_FFI_Extension_Collectives_MajorVersion) + ".1 and later";
    return nullptr;
  }
  return reinterpret_cast<const XLA_FFI_Collectives_Extension*>(asked.extension);
}

std::vector<XLA_FFI_ReplicaGroup> Groups(const DeviceGroups& groups) {
  std::vector<XLA_FFI_ReplicaGroup> all;
  const int64_t* next = groups.positions;
  for (int64_t i = 0; i < groups.count; next += groups.sizes[i++]) {
    all.push_back({next, static_cast<size_t>(groups.sizes[i])});
  }
  return all;
}

// Fills in what a request and a question have in common. A position in the devices is XLA's flattened id.
template <typename Args>
Args About(size_t size, const std::vector<XLA_FFI_ReplicaGroup>& groups) {
  Args args{};
  args.struct_size = size;
  args.group_mode = XLA_FFI_GROUP_FLATTENED_ID;
  args.groups = groups.data();
  args.num_groups = groups.size();
  args.communication_id = kOurs;
  return args;
}

std::string Borrow(const XLA_FFI_CallFrame& frame, const DeviceGroups& given, void** communicator) {
  std::string why;
  const XLA_FFI_Collectives_Extension* const xla = Find(&frame, why);
  if (xla == nullptr) return why;
  const std::vector<XLA_FFI_ReplicaGroup> groups = Groups(given);
  if (frame.stage == XLA_FFI_ExecutionStage_PREPARE) {
    auto args = About<XLA_FFI_Communicator_Request_Args>(XLA_FFI_Communicator_Request_Args_STRUCT_SIZE, groups);
    XLA_FFI_Error* const error = xla->request_communicator(xla, &args);
    return error != nullptr ? Take(frame.api, error) : "";
  }
  auto args = About<XLA_FFI_Communicator_Get_Args>(XLA_FFI_Communicator_Get_Args_STRUCT_SIZE, groups);
  if (XLA_FFI_Error* const error = xla->get_communicator(xla, &args)) return Take(frame.api, error);
  *communicator = args.communicator;
  return args.communicator != nullptr ? "" : "XLA gave none";
}

}  // namespace
}  // namespace jaxcomm

extern "C" __attribute__((visibility("default"))) int64_t jaxcomm_xla_lend(const XLA_FFI_CallFrame* frame,
                                                                           const jaxcomm::DeviceGroups* groups,
                                                                           void** communicator, char* error,
                                                                           int64_t size) {
  const std::string why = jaxcomm::Borrow(*frame, *groups, communicator);
  if (why.empty()) return 0;
  std::snprintf(error, static_cast<size_t>(size),
                "XLA lends no communicator: %s.\n  Cure: remove jaxcomm_cuda13_xla.so from jaxcomm/ffi; jaxcomm then "
                "makes communicators of its own.",
                why.c_str());
  return 1;
}
