// The collectives of unchanged programs. jaxlib calls some of these functions through cc/backend. Python calls the
// exported functions to set the groups of devices and the lists of messages; they report errors as in c_function.h.

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
#include "cc/ffi/api/arguments.h"
#include "cc/ffi/job.h"
#include "cc/ffi/kept_failures.h"
#include "cc/ffi/list_rules.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

// The groups whose devices may ask for communicators now. Each group is known by its first device; no other group has
// the same first device.
class Groups {
 public:
  // Devices that name the first of these devices get this group, until Forget.
  void Expect(const std::vector<MessageRank>& devices) {
    std::lock_guard<std::mutex> lock(mutex_);
    // Instances count from 0 in each job, because the job may have new processes that have made no groups before.
    const uint64_t generation = TheJob().generation();
    if (std::exchange(generation_, generation) != generation) instances_.clear();
    expected_[devices[0].device] = {devices, nullptr};
  }

  void Forget(uint32_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    expected_.erase(first);
  }

  // Creates the group only when a device asks for it. A process may expect a group for which no device asks, and expect
  // it again later.
  std::shared_ptr<DeviceGroup> Find(uint32_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = expected_.find(first);
    if (at == expected_.end()) return nullptr;
    auto& [devices, group] = at->second;
    if (!group) {
      std::vector<uint32_t> numbers;
      for (const MessageRank& device : devices) numbers.push_back(device.device);
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
    std::vector<MessageRank> devices;
    std::shared_ptr<DeviceGroup> group;  // null until a device asks for the group
  };
  std::map<uint32_t, Expected> expected_;                // by first device
  std::map<std::vector<uint32_t>, uint32_t> instances_;  // by devices: the number of groups made in this generation
  uint64_t generation_ = 0;
  std::shared_ptr<const ListRules> rules_ = std::make_shared<const ListRules>();
};

// Never destroyed, as in runtime.h.
Groups& TheGroups() {
  static Groups* const groups = std::make_unique<Groups>().release();
  return *groups;
}

// A device's communicator, or the error that explains why the device has no communicator.
struct Handle {
  std::unique_ptr<DeviceCommunicator> communicator;
  Status status;
  uint64_t generation = TheJob().generation();

  // Fails if there is no communicator, or if the communicator belongs to another job.
  Status Check() const {
    return communicator ? TheJob().CheckGeneration(generation, "a collective over " + communicator->group().name())
                        : status;
  }
};

struct Request {
  Handle* handle;
  std::shared_ptr<Transfer> transfer;
};

thread_local char error_bytes[512];  // XLA reads at most this many bytes
thread_local JaxcommText error_text{error_bytes, sizeof(error_bytes), 0};

// Runs a call. An exception, usually for lack of memory, becomes the call's error.
template <typename Call>
int End(Call call) {
  return Answer(&error_text, [&] {
    const Status status = call();
    if (!status.ok()) TheFailures().Keep(status);
    return status;
  });
}

// Runs a call of the handle's communicator. If the call throws, the other devices may still make the same call. No
// later call of this device matches that call, because a call's name has the device's number of failures.
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
                            who + " is unknown: jaxcomm did not see the program before it ran.\n  Cure: run it with "
                                  "jax.jit, or unset JAXCOMM_EVERY_COLLECTIVE.")};
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
      return End([&] {
        try {
          return it->handle->communicator->Wait(it->transfer);
        } catch (...) {
          it->handle->communicator->CouldNotBegin();  // XLA frees the memory of all begun transfers
          throw;
        }
      });
    },
    [](const void* sent, int to, void* received, int from, int64_t bytes, void* handle) {
      return Run(handle, [&](DeviceCommunicator& it) {
        return it.Exchange(Bytes(sent), static_cast<uint32_t>(to), Bytes(received), static_cast<uint32_t>(from), bytes);
      });
    },
    [](char* text, int capacity) {
      JaxcommText out{text, capacity, 0};
      CopyText(static_cast<const char*>(error_bytes), &out);
      return static_cast<int>(std::char_traits<char>::length(text));
    },
};

}  // namespace

// Returns the functions for cc/backend.
JAXCOMM_EXPORT int jaxcomm_backend_table(const void** table, JaxcommText* error) {
  return Answer(error, [&] { *table = &kTable; });
}

// Expects devices to ask for communicators of this group. `processes[i]` is the process of `devices[i]`.
JAXCOMM_EXPORT int jaxcomm_backend_expect(const uint32_t* devices, const uint32_t* processes, int64_t count,
                                          JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    if (!TheJob().started()) return InvalidArgument("the processes of the job are not connected.");
    if (count < 1) return InvalidArgument("a group needs at least one device");
    std::vector<MessageRank> group;
    for (int64_t rank = 0; rank < count; ++rank) {
      group.push_back(TheJob().Rank(processes[rank], devices[rank]));
    }
    TheGroups().Expect(group);
    return Status();
  });
}

// Called when all devices have asked for their communicators. The group with this first device is no longer expected.
JAXCOMM_EXPORT int jaxcomm_backend_forget(int64_t first, JaxcommText* error) {
  return Answer(error, [&] { TheGroups().Forget(static_cast<uint32_t>(first)); });
}

// Sets the rules by which collectives choose their lists of messages.
JAXCOMM_EXPORT int jaxcomm_backend_lists(const CollectiveLists* given, JaxcommText* error) {
  return Answer(error, [&] {
    ListRules rules{given->flat_bytes,
                    given->flat_bytes_on_one_host,
                    given->ring_bytes,
                    given->ring_bytes_of_several,
                    given->plan,
                    static_cast<uint32_t>(given->ranks),
                    {},
                    given->tries != 0};
    std::istringstream lines(given->names);
    std::string line;
    for (int64_t i = 0; i < given->ranges && std::getline(lines, line); ++i) {
      const size_t end = line.rfind(' ');
      rules.planned[given->min_bytes[i]] = {line.substr(0, end), end == std::string::npos ? "" : line.substr(end + 1)};
    }
    TheGroups().SetRules(std::move(rules));
  });
}

}  // namespace jaxcomm
