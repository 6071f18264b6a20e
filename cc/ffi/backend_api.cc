// Every collective of unchanged programs: the functions that jaxlib calls through cc/backend, and those by which Python
// says which groups of devices and which lists of messages there are; c_function.h says how these end.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/backend/table.h"
#include "cc/base/c_function.h"
#include "cc/executor/device_communicator.h"
#include "cc/ffi/job.h"
#include "cc/ffi/kept_failures.h"
#include "cc/ffi/list_rules.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

// The groups for whose communicators devices may ask now: no two have the same first device, by which they are known.
class Groups {
 public:
  // Until Forget, devices that name its first device ask for this group.
  void Expect(const std::vector<MessageGroup::Rank>& devices) {
    std::lock_guard<std::mutex> lock(mutex_);
    // Processes that are new in this job have made no groups in the last one.
    const uint64_t generation = TheJob().generation();
    if (std::exchange(generation_, generation) != generation) instances_.clear();
    expected_[devices[0].device] = {devices, nullptr};
  }

  void Forget(uint32_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    expected_.erase(first);
  }

  // It is a new group when a device asks for it, not before: a process may expect it in vain and again.
  std::shared_ptr<DeviceGroup> Find(uint32_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = expected_.find(first);
    if (at == expected_.end()) return nullptr;
    auto& [devices, group] = at->second;
    if (!group) {
      std::vector<uint32_t> numbers;
      for (const MessageGroup::Rank& device : devices) numbers.push_back(device.device);
      group = std::make_shared<DeviceGroup>(DeviceGroup::NameOf(devices), devices, instances_[numbers]++);
    }
    return group;
  }

  void SetRules(ListRules rules) {
    std::lock_guard<std::mutex> lock(mutex_);
    rules_ = std::make_shared<const ListRules>(std::move(rules));
  }
  std::shared_ptr<const ListRules> rules() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return rules_;
  }

 private:
  mutable std::mutex mutex_;
  struct Expected {
    std::vector<MessageGroup::Rank> devices;
    std::shared_ptr<DeviceGroup> group;  // once a device has asked
  };
  std::map<uint32_t, Expected> expected_;                // by their first device
  std::map<std::vector<uint32_t>, uint32_t> instances_;  // so far in the generation, by devices
  uint64_t generation_ = 0;
  std::shared_ptr<const ListRules> rules_ = std::make_shared<const ListRules>();
};

// Lives until the process ends, as in runtime.h.
Groups& TheGroups() {
  static Groups* const groups = std::make_unique<Groups>().release();
  return *groups;
}

// A device's communicator, or why it has none.
struct Handle {
  std::unique_ptr<DeviceCommunicator> communicator;
  Status status;
  uint64_t generation = TheJob().generation();

  // An error: it has none, or that of another job.
  Status Check() const {
    return communicator ? TheJob().CheckGeneration(generation, "a collective over " + communicator->group().name())
                        : status;
  }
};

struct Request {
  Handle* handle;
  std::shared_ptr<Transfer> transfer;
};

thread_local char error_text[512];  // as much as XLA takes

// An exception of the call, mostly for lack of memory, is its error.
template <typename Call>
int End(Call call) {
  return Answer(error_text, sizeof(error_text), [&] {
    const Status status = call();
    if (!status.ok()) TheFailures().Keep(status);
    return status;
  });
}

// Runs a call of the handle's communicator. Where it throws, other devices may have made it: the names of calls count
// failures, so that no later one is taken for it.
template <typename Call>
int Run(void* handle, Call call) {
  auto* const it = static_cast<Handle*>(handle);
  return End([&]() -> Status {
    if (Status status = it->Check(); !status.ok()) return status;
    try {
      return call(*it->communicator);
    } catch (...) {
      it->communicator->CouldNotBegin();
      throw;
    }
  });
}

template <typename Start>
int Begin(void* handle, void** begun, Start start) {
  return Run(handle, [&](DeviceCommunicator& it) {
    auto request = std::make_unique<Request>(Request{static_cast<Handle*>(handle), nullptr});
    request->transfer = start(it);
    *begun = request.release();
    return Status();
  });
}

Handle MakeHandle(int color, int key) {
  const std::string who = "a communicator whose first device is " + std::to_string(color);
  const std::shared_ptr<DeviceGroup> group = color < 0 ? nullptr : TheGroups().Find(static_cast<uint32_t>(color));
  if (!group) {
    return {nullptr, Status(Code::kInternal,
                            who + " is not known: jaxcomm did not see the program before it ran.\n  Cure: run it by "
                                  "jax.jit, or without JAXCOMM_EVERY_COLLECTIVE.")};
  }
  if (key < 0 || static_cast<size_t>(key) >= group->devices().size() ||
      group->devices()[key].process != TheJob().process()) {
    return {nullptr, Status(Code::kInternal, who + ": rank " + std::to_string(key) + " of " + group->name() +
                                                 " is not a device of this process")};
  }
  const auto choose = [](Kind kind, const DeviceGroup& of, int64_t bytes) {
    return TheGroups().rules()->Choose(kind, of, bytes);
  };
  return {std::make_unique<DeviceCommunicator>(TheExecutor(), TheMessages(), choose, group, static_cast<uint32_t>(key)),
          Status()};
}

const std::byte* Bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* Bytes(void* data) { return static_cast<std::byte*>(data); }

const BackendTable kTable = {
    [](int color, int key, void** made) {
      return End([&] {
        *made = std::make_unique<Handle>(MakeHandle(color, key)).release();
        return Status();
      });
    },
    [](void* handle) { std::unique_ptr<Handle>(static_cast<Handle*>(handle)).reset(); },
    [](void* handle) {
      const auto& it = static_cast<Handle*>(handle)->communicator;
      return it ? static_cast<int>(it->rank()) : 0;
    },
    [](void* handle) {
      const auto& it = static_cast<Handle*>(handle)->communicator;
      return it ? static_cast<int>(it->size()) : 1;
    },
    [](const void* operand, void* result, int64_t bytes, int dtype, int reduction, void* handle) {
      return Run(handle, [&](DeviceCommunicator& it) {
        return it.AllReduce(Bytes(operand), Bytes(result), bytes, static_cast<DType>(dtype),
                            static_cast<Reduction>(reduction));
      });
    },
    [](const void* operand, void* result, int64_t bytes, int dtype, int reduction, void* handle) {
      return Run(handle, [&](DeviceCommunicator& it) {
        return it.ReduceScatter(Bytes(operand), Bytes(result), bytes, static_cast<DType>(dtype),
                                static_cast<Reduction>(reduction));
      });
    },
    [](const void* operand, void* result, int64_t bytes, void* handle) {
      return Run(handle, [&](DeviceCommunicator& it) { return it.AllGather(Bytes(operand), Bytes(result), bytes); });
    },
    [](const void* message, int64_t bytes, int peer, const char* name, void* handle, void** request) {
      return Begin(handle, request, [&](DeviceCommunicator& it) {
        return it.Send(Bytes(message), bytes, static_cast<uint32_t>(peer), name);
      });
    },
    [](void* message, int64_t bytes, int peer, const char* name, void* handle, void** request) {
      return Begin(handle, request, [&](DeviceCommunicator& it) {
        return it.Receive(Bytes(message), bytes, static_cast<uint32_t>(peer), name);
      });
    },
    [](void* request) {
      const std::unique_ptr<Request> it(static_cast<Request*>(request));
      return End([&] { return it->handle->communicator->Wait(it->transfer); });
    },
    [](const void* sent, int to, void* received, int from, int64_t bytes, void* handle) {
      return Run(handle, [&](DeviceCommunicator& it) {
        return it.Exchange(Bytes(sent), static_cast<uint32_t>(to), Bytes(received), static_cast<uint32_t>(from), bytes);
      });
    },
    [](char* text, int capacity) {
      CopyText(static_cast<const char*>(error_text), text, capacity);
      return static_cast<int>(std::char_traits<char>::length(text));
    },
};

}  // namespace

// The functions for cc/backend.
JAXCOMM_EXPORT int jaxcomm_backend_table(const void** table, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { *table = &kTable; });
}

// Devices are about to ask for the communicators of this group, the processes of whose `count` devices are given.
JAXCOMM_EXPORT int jaxcomm_backend_expect(const uint32_t* devices, const uint32_t* processes, int64_t count,
                                          char* error, int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    if (!TheJob().started()) return InvalidArgument("the processes of the job are not connected.");
    if (count < 1) return InvalidArgument("a group without a device");
    std::vector<MessageGroup::Rank> group;
    for (int64_t rank = 0; rank < count; ++rank) {
      group.push_back(TheJob().Rank(processes[rank], devices[rank]));
    }
    TheGroups().Expect(group);
    return Status();
  });
}

// They have asked: the group with this first device is expected no more.
JAXCOMM_EXPORT int jaxcomm_backend_forget(int64_t first, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { TheGroups().Forget(static_cast<uint32_t>(first)); });
}

// Sets the lists that collectives run: the bounds of those without a plan; and a plan's, for all-reduces of `ranks`, by
// the smallest sizes `min_bytes`, the first of which is 0, one in a line with its schedule's kind, "NAME ring" ("": as
// without a plan). `tries`: in a trial.
JAXCOMM_EXPORT int jaxcomm_backend_lists(int64_t flat_bytes, int64_t flat_bytes_on_one_host, int64_t ring_bytes,
                                         int64_t ring_bytes_of_several, const char* plan, int64_t ranks,
                                         const int64_t* min_bytes, const char* names, int64_t num_ranges, int tries,
                                         char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    ListRules rules{flat_bytes, flat_bytes_on_one_host,       ring_bytes, ring_bytes_of_several,
                    plan,       static_cast<uint32_t>(ranks), {},         tries != 0};
    std::istringstream lines(names);
    std::string line;
    for (int64_t i = 0; i < num_ranges && std::getline(lines, line); ++i) {
      const size_t end = line.rfind(' ');
      rules.planned[min_bytes[i]] = {line.substr(0, end), end == std::string::npos ? "" : line.substr(end + 1)};
    }
    TheGroups().SetRules(std::move(rules));
  });
}

}  // namespace jaxcomm
