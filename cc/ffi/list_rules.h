// Chooses the list of messages that a collective of an unchanged program runs.
//
//   ListRules rules{/*flat_bytes=*/16 << 10, ...};
//   const auto chosen = rules.Choose(Kind::kAllReduce, group, bytes);   // bytes of the whole buffer
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cc/executor/device_communicator.h"

namespace jaxcomm {

struct ListRules {
  // An all-reduce runs the "flat" list if its buffer has at most flat_bytes. On one host, an all-reduce also runs the
  // "flat" list if all ranks' buffers together have at most flat_bytes_on_one_host. Three or more ranks on several
  // hosts run the "ring" list if each host's ranks are consecutive and each rank's chunk has at least ring_bytes, or
  // ring_bytes_of_several if a host has several ranks. All other collectives run the "direct" list.
  int64_t flat_bytes = 0, flat_bytes_on_one_host = 0, ring_bytes = 0, ring_bytes_of_several = 0;
  // `planned` has the lists of the plan `plan` for all-reduces of `ranks` ranks. The key is the smallest buffer size,
  // in bytes, for which the list is used. If a list's name is empty, all-reduces run the list that they would run
  // without a plan. If `plan` is kAuto, all-reduces follow the plan of the run (plan_selector.h).
  std::string plan;
  uint32_t ranks = 0;
  struct Planned {
    std::string list, kind = "";  // the kind of the list's schedule, such as "ring"
  };
  std::map<int64_t, Planned> planned;
  bool tries = false;  // whether a trial compares the plan's schedules with the default schedules

  DeviceCommunicator::ChosenList Choose(Kind kind, const DeviceGroup& group, int64_t bytes) const {
    const std::vector<MessageRank>& devices = group.devices();
    const DeviceCommunicator::ChosenList usual = ChooseUsual(kind, devices, bytes);
    if (kind == Kind::kAllReduce && ranks == devices.size() && !planned.empty()) {
      const auto& [list, schedule] = std::prev(planned.upper_bound(bytes))->second;
      if (!list.empty()) return {list, plan, tries && schedule != usual.plan ? usual.list : ""};
    }
    return usual;
  }

 private:
  DeviceCommunicator::ChosenList ChooseUsual(Kind kind, const std::vector<MessageRank>& devices, int64_t bytes) const {
    const bool is_switched = kind == Kind::kAllReduce && plan == kAuto && AreInOrder(devices);
    const std::string number = "/" + std::to_string(devices.size());
    const bool is_flat = IsFlat(devices, bytes);
    const std::string way = !is_flat && GoesRound(devices, bytes) ? "ring" : "direct";
    if (kind == Kind::kReduceScatter) return {"reduce_scatter/" + way + number, way};
    if (kind == Kind::kAllGather) return {"all_gather/" + way + number, way};
    return {"all_reduce/" + (is_flat ? "flat" : way) + number, is_switched ? std::string(kAuto) : way};
  }

  // Whether the ranks are in the order of their devices, which is the order of ranks in the run's plans.
  static bool AreInOrder(const std::vector<MessageRank>& devices) {
    return std::is_sorted(devices.begin(), devices.end(),
                          [](const auto& one, const auto& other) { return one.device < other.device; });
  }

  bool IsFlat(const std::vector<MessageRank>& devices, int64_t bytes) const {
    const bool is_one_host = std::all_of(devices.begin(), devices.end(),
                                         [&](const MessageRank& device) { return device.host == devices[0].host; });
    return bytes <= flat_bytes ||
           (is_one_host && bytes * static_cast<int64_t>(devices.size()) <= flat_bytes_on_one_host);
  }

  bool GoesRound(const std::vector<MessageRank>& devices, int64_t bytes) const {
    std::set<uint32_t> hosts;
    size_t changes = 0;
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      hosts.insert(devices[rank].host);
      changes += devices[rank].host != devices[(rank + devices.size() - 1) % devices.size()].host ? 1 : 0;
    }
    const int64_t least = hosts.size() == devices.size() ? ring_bytes : ring_bytes_of_several;
    return devices.size() > 2 && changes == hosts.size() && bytes >= least * static_cast<int64_t>(devices.size());
  }
};

}  // namespace jaxcomm
