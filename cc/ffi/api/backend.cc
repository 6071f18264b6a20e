// Runs the collectives of unchanged programs. jaxlib calls the functions of kTable through cc/backend. Python calls the
// exported functions, which set the groups of devices and the lists of messages, and report errors as c_function.h
// defines.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

// The groups whose devices may ask for communicators now. The first device identifies a group: no two of these groups
// have the same first device.
class Groups {
 public:
  struct Expected {
    std::vector<MessageRank> devices;
    std::shared_ptr<DeviceGroup> group = nullptr;  // null until a device asks for the group
    // Whether the group is still expected. The handles of the group share this flag.
    std::shared_ptr<std::atomic<bool>> is_expected = std::make_shared<std::atomic<bool>>(true);
  };

  // Adds a group. Until Forget, Find(first device) returns this group.
  void Expect(const std::vector<MessageRank>& devices) {
    std::lock_guard<std::mutex> lock(mutex_);
    expected_[devices[0].device] = {devices};
  }

  void Forget(uint32_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = expected_.find(first);
    if (at == expected_.end()) return;
    *at->second.is_expected = false;
    expected_.erase(at);
  }

  // Returns the expected group with this first device, or null. Creates the group at the first request, so that a group
  // that no device asks for does not get an instance number.
  std::optional<Expected> Find(uint32_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = expected_.find(first);
    if (at == expected_.end()) return std::nullopt;
    if (!at->second.group) at->second.group = Make(at->second.devices);
    return at->second;
  }

  // Returns the group of the same devices in the current generation.
  std::shared_ptr<DeviceGroup> Renew(const DeviceGroup& group) {
    std::lock_guard<std::mutex> lock(mutex_);
    BeginGeneration();
    std::shared_ptr<DeviceGroup>& renewed = renewed_[NumbersOf(group.devices())];
    if (!renewed) renewed = Make(group.devices());
    return renewed;
  }

  void SetRules(ListRules rules) {
    std::lock_guard<std::mutex> lock(mutex_);
    rules_ = std::make_shared<const ListRules>(std::move(rules));
    ++changes_;
  }
  // The number of calls of SetRules.
  const std::atomic<uint64_t>& changes() const { return changes_; }
  std::shared_ptr<const ListRules> rules() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return rules_;
  }

 private:
  static std::vector<uint32_t> NumbersOf(const std::vector<MessageRank>& devices) {
    std::vector<uint32_t> numbers;
    for (const MessageRank& device : devices) numbers.push_back(device.device);
    return numbers;
  }

  // Clears the groups of an earlier generation. Each generation numbers instances from 0, because its new processes
  // have made no groups before.
  void BeginGeneration() {
    const uint64_t generation = TheJob().generation();
    if (std::exchange(generation_, generation) == generation) return;
    instances_.clear();
    renewed_.clear();
  }

  std::shared_ptr<DeviceGroup> Make(const std::vector<MessageRank>& devices) {
    BeginGeneration();
    std::vector<MessageRank> ranks;  // the devices, with their hosts in this generation
    for (const MessageRank& device : devices) ranks.push_back(TheJob().Rank(device.process, device.device));
    return std::make_shared<DeviceGroup>(DeviceGroup::NameOf(ranks), ranks, instances_[NumbersOf(ranks)]++);
  }

  mutable std::mutex mutex_;
  std::map<uint32_t, Expected> expected_;                                  // by first device
  uint64_t generation_ = 0;                                                // the generation of instances_ and renewed_
  std::map<std::vector<uint32_t>, uint32_t> instances_;                    // by devices: the number of groups made
  std::map<std::vector<uint32_t>, std::shared_ptr<DeviceGroup>> renewed_;  // by devices
  std::shared_ptr<const ListRules> rules_ = std::make_shared<const ListRules>();
  std::atomic<uint64_t> changes_{0};
};

// Never destroyed; runtime.h has the reason.
Groups& TheGroups() {
  static Groups* const groups = std::make_unique<Groups>().release();
  return *groups;
}

std::shared_ptr<DeviceCommunicator> MakeCommunicator(std::shared_ptr<DeviceGroup> group, uint32_t rank) {
  const auto choose = [](Kind kind, const DeviceGroup& of, int64_t bytes) {
    return TheGroups().rules()->Choose(kind, of, bytes);
  };
  return std::make_shared<DeviceCommunicator>(TheExecutor(), TheMessages(), choose, std::move(group), rank,
                                              &TheGroups().changes());
}

// A device's communicator, or the error that explains why the device has no communicator. XLA keeps a handle until
// XLA's client ends. A communicator belongs to one generation of the job.
struct Handle {
  std::shared_ptr<DeviceCommunicator> communicator;
  Status status;
  std::shared_ptr<std::atomic<bool>> is_made_known = nullptr;  // whether the handle's group is still expected
  uint64_t job = TheJob().number(), generation = TheJob().generation();

  // Fails if there is no communicator, or if the handle belongs to another job. Replaces a communicator of an earlier
  // generation.
  Status Check() {
    if (!communicator) return status;
    if (job != TheJob().number()) {  // tested here, because the text of the error takes time to make
      return TheJob().CheckNumber(job, "a collective over " + communicator->group().name());
    }
    const uint64_t now = TheJob().generation();
    if (now == generation) return Status();
    if (!TheJob().started()) return InvalidArgument("the processes of the job are not connected.");
    communicator = MakeCommunicator(TheGroups().Renew(communicator->group()), communicator->rank());
    generation = now;
    return Status();
  }

  // While the group is expected, jaxcomm/backend/groups.py runs a sum of ones, so that XLA makes the communicators of
  // the group. Devices that have their communicators already do not run this sum. Therefore this function computes the
  // sum without the other devices, as the operand times the number of devices. Returns false for any other sum.
  bool SumAlone(const void* operand, void* result, int64_t bytes, DType dtype) const {
    int32_t value;
    if (!is_made_known || !*is_made_known || dtype != DType::kS32 || bytes != sizeof value) return false;
    std::memcpy(&value, operand, sizeof value);
    value *= static_cast<int32_t>(communicator->size());
    std::memcpy(result, &value, sizeof value);
    return true;
  }
};

struct Request {
  std::shared_ptr<DeviceCommunicator> communicator;
  std::shared_ptr<PendingCall> transfer;
  uint64_t generation = TheJob().generation();

  // Fails if the transfer has not begun in its generation of the job.
  Status Wait() {
    if (generation != TheJob().generation()) {
      communicator->FailRecorded(
          InvalidArgument("a transfer over " + communicator->group().name() +
                          ": the members of the job have changed.\n  Cure: run the step again."));
    }
    return communicator->Wait(transfer);
  }
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

// Runs a call of the handle's communicator. If the call throws, counts a failure of this device, because the other
// devices may still make the same call. A call's id includes the device's number of failures, so no later call of this
// device joins that call.
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
    auto request = std::make_unique<Request>(Request{static_cast<Handle*>(handle)->communicator, nullptr});
    request->transfer = start(it);
    *begun = request.release();
    return Status();
  });
}

Handle MakeHandle(int color, int key) {
  const std::string who = "a communicator whose first device is " + std::to_string(color);
  std::optional<Groups::Expected> found;
  if (color >= 0) found = TheGroups().Find(static_cast<uint32_t>(color));
  if (!found) {
    return {nullptr, Status(Code::kInternal,
                            who + " is unknown: jaxcomm did not see the program before it ran.\n  Cure: run it with "
                                  "jax.jit, or unset JAXCOMM_EVERY_COLLECTIVE.")};
  }
  const DeviceGroup& group = *found->group;
  if (key < 0 || static_cast<size_t>(key) >= group.devices().size() ||
      group.devices()[key].process != TheJob().process()) {
    return {nullptr, Status(Code::kInternal, who + ": rank " + std::to_string(key) + " of " + group.name() +
                                                 " is not a device of this process")};
  }
  return {MakeCommunicator(found->group, static_cast<uint32_t>(key)), Status(), found->is_expected};
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
      const auto& its = *static_cast<Handle*>(handle);
      if (its.SumAlone(operand, result, bytes, static_cast<DType>(dtype))) return 0;
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
          return it->Wait();
        } catch (...) {
          it->communicator->CouldNotBegin();  // ends all recorded transfers, because XLA frees their memory
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

// Adds a group whose devices will ask for communicators. `processes[i]` is the process of `devices[i]`.
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

// Removes the group with this first device. Called when all devices of the group have asked for their communicators.
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
