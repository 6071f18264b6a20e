// The custom call "jaxcomm_nccl" is an all-reduce that runs a whole schedule of NCCL's sends and receives on XLA's
// stream. Python calls the C functions below to make communicators and to register messages.
//
// The call must not be captured into a CUDA graph. The call has no deadline: a rank that never arrives blocks its
// peers' streams, as in XLA's collectives.

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/ffi/values.h"
#include "cc/gpu/nccl/communicator.h"
#include "cc/gpu/nccl/message_rounds.h"
#include "cc/program/message_registry.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

constexpr size_t kScratchAlignment = 16;  // bytes; the largest alignment that XLA guarantees

// Never destroyed, because XLA's threads may use the runtime while static destructors run.
struct NcclRuntime {
  MessageRegistry messages;  // the names end with the number of ranks
  std::mutex mutex;
  std::map<std::pair<std::string, int>, std::shared_ptr<nccl::Communicator>> communicators;  // by group and device
};

NcclRuntime& TheNcclRuntime() {
  static NcclRuntime* runtime = std::make_unique<NcclRuntime>().release();
  return *runtime;
}

// Finds the leaves, which are the call's arrays, and their memory. Each result must alias its operand, because the
// schedule works in place.
Status FindLeaves(ffi::RemainingArgs args, ffi::RemainingRets results, std::vector<Leaf>& leaves,
                  std::vector<std::byte*>& at) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer x = *args.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(x.element_type());
    if (!dtype) return Status(Code::kUnimplemented, "no reduction of this element type");
    if (x.untyped_data() != (*results.get<ffi::AnyBuffer>(i))->untyped_data()) {
      return Status(Code::kInternal, "operand and result are not the same memory");
    }
    leaves.push_back({*dtype, static_cast<int64_t>(x.size_bytes())});
    at.push_back(static_cast<std::byte*>(x.untyped_data()));
  }
  return Status();
}

Status Queue(int32_t device, cudaStream_t stream, ffi::ScratchAllocator& scratch, ffi::RemainingArgs args,
             ffi::RemainingRets results, std::string_view group, std::string_view messages,
             std::string_view reduction) {
  std::unique_lock<std::mutex> lock(TheNcclRuntime().mutex);
  const std::shared_ptr<nccl::Communicator> communicator = TheNcclRuntime().communicators[{std::string(group), device}];
  lock.unlock();
  if (!communicator) return InvalidArgument("GPU " + std::to_string(device) + " has not joined the group");
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return InvalidArgument("unknown reduction '" + std::string(reduction) + "'");
  std::vector<Leaf> leaves;
  std::vector<std::byte*> at;
  if (const Status status = FindLeaves(args, results, leaves, at); !status.ok()) return status;
  if (communicator->ranks() == 1) return Status();
  const std::string name = std::string(messages) + "/" + std::to_string(communicator->ranks());
  std::shared_ptr<const Messages> found = TheNcclRuntime().messages.Find(name, communicator->rank());
  if (!found) return InvalidArgument("messages " + name + " are not registered in this process");
  const nccl::MessageRounds rounds{std::move(found), Layout(std::move(leaves)), *parsed};
  std::byte* memory = nullptr;
  if (rounds.ScratchBytes() > 0) {
    const std::optional<void*> allocated = scratch.Allocate(rounds.ScratchBytes(), kScratchAlignment);
    if (!allocated) return Status(Code::kInternal, "no memory for received chunks");
    memory = static_cast<std::byte*>(*allocated);
  }
  return communicator->Run(
      [&](const nccl::Library& library, nccl::Comm comm) { return rounds.Queue(library, comm, at, memory, stream); });
}

ffi::Error AllReduce(int32_t device, cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                     ffi::RemainingRets results, std::string_view name, std::string_view group,
                     std::string_view messages, std::string_view reduction) {
  const Status status = Queue(device, stream, scratch, args, results, group, messages, reduction);
  const std::string call = std::string(name) + " over '" + std::string(group) + "': ";
  return ToError(status.ok() ? status : Status(status.code(), call + status.message()));
}

XLA_FFI_DEFINE_HANDLER(kNccl, AllReduce,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("name")
                           .Attr<std::string_view>("group")
                           .Attr<std::string_view>("messages")
                           .Attr<std::string_view>("reduction"));

template <typename Body>
int WithNccl(const char* path, JaxcommText* error, Body body) {
  return Answer(error, [&] {
    const Result<const nccl::Library*> library = nccl::Library::Open(path);
    return library.ok() ? body(*library.value()) : library.status();
  });
}

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommNccl(XLA_FFI_CallFrame* frame) { return kNccl(frame); }

// Stores the version of NCCL, such as 23007.
JAXCOMM_EXPORT int jaxcomm_nccl_version(const char* path, int* version, JaxcommText* error) {
  return WithNccl(path, error, [&](const nccl::Library& library) {
    return library.Check("NCCL's version", library.GetVersion(version), nullptr);
  });
}

// Stores the id of a new group, 128 bytes.
JAXCOMM_EXPORT int jaxcomm_nccl_id(const char* path, nccl::Id* id, JaxcommText* error) {
  return WithNccl(path, error, [&](const nccl::Library& library) {
    return library.Check("NCCL's id of a group", library.GetUniqueId(id), nullptr);
  });
}

// Adds a device to a group as the given rank, and waits for the other ranks.
JAXCOMM_EXPORT int jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                                     const nccl::Id* id, double deadline_s, JaxcommText* error) {
  return WithNccl(path, error, [&](const nccl::Library& library) {
    const std::chrono::duration<double> deadline(deadline_s);
    auto made = nccl::Communicator::Join(library, device, {ranks, rank, *id}, deadline);
    std::lock_guard<std::mutex> lock(TheNcclRuntime().mutex);
    if (made.ok()) TheNcclRuntime().communicators[{group, device}].swap(made.value());
    return made.status();
  });
}

// Registers one rank's list of messages. The encoded list also contains the rank's number. `name` ends with a slash and
// the number of ranks.
JAXCOMM_EXPORT int jaxcomm_nccl_register(const char* name, const void* bytes, int64_t num_bytes, JaxcommText* error) {
  return Answer(error, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? TheNcclRuntime().messages.Add(name, words.value().data(), words.value().size())
                      : words.status();
  });
}

}  // namespace jaxcomm
