// The list of messages that a collective of an unchanged program runs.
//
//   ListRules rules{/*flat_bytes=*/16 << 10, /*flat_bytes_on_one_host=*/256 << 10, /*ring_bytes=*/256 << 10,
//   /*ring_bytes_of_several=*/32 << 10, …}; DeviceCommunicator::Chosen chosen = rules.Choose(Kind::kAllReduce, group,
//   bytes);   // of the whole buffer
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
  // Bytes of a whole buffer up to which an all-reduce is flat, or on one host of all ranks' buffers; and of a rank's
  // chunk from which on ranks of several hosts form a ring: with one rank a host, and with several.
  int64_t flat_bytes = 0, flat_bytes_on_one_host = 0, ring_bytes = 0, ring_bytes_of_several = 0;
  // The lists of a plan, for all-reduces of `ranks`, by their smallest sizes; "": as without a plan. With kAuto, what
  // the run makes.
  std::string plan;
  uint32_t ranks = 0;
  struct Planned {
    std::string list, kind = "";  // "ring", of the list's schedule
  };
  std::map<int64_t, Planned> planned;
  bool tries = false;  // the plan's schedules in a trial, where they are others than without it

  DeviceCommunicator::Chosen Choose(Kind kind, const DeviceGroup& group, int64_t bytes) const {
    const std::vector<MessageGroup::Rank>& devices = group.devices();
    const DeviceCommunicator::Chosen usual = ChooseUsual(kind, devices, bytes);
    if (kind == Kind::kAllReduce && ranks == devices.size() && !planned.empty()) {
      const auto& [list, schedule] = std::prev(planned.upper_bound(bytes))->second;
      if (!list.empty()) return {list, plan, tries && schedule != usual.plan ? usual.list : ""};
    }
    return usual;
  }

 private:
  DeviceCommunicator::Chosen ChooseUsual(Kind kind, const std::vector<MessageGroup::Rank>& devices,
                                         int64_t bytes) const {
    const bool is_switched = kind == Kind::kAllReduce && plan == kAuto && AreInOrder(devices);
    const std::string number = "/" + std::to_string(devices.size());
    const bool is_flat = IsFlat(devices, bytes);
    const std::string way = !is_flat && GoesRound(devices, bytes) ? "ring" : "direct";
    if (kind == Kind::kReduceScatter) return {"reduce_scatter/" + way + number, way};
    if (kind == Kind::kAllGather) return {"all_gather/" + way + number, way};
    return {"all_reduce/" + (is_flat ? "flat" : way) + number, is_switched ? std::string(kAuto) : way};
  }

  // As the ranks of the run's plans are.
  static bool AreInOrder(const std::vector<MessageGroup::Rank>& devices) {
    return std::is_sorted(devices.begin(), devices.end(),
                          [](const auto& one, const auto& other) { return one.device < other.device; });
  }

  bool IsFlat(const std::vector<MessageGroup::Rank>& devices, int64_t bytes) const {
    const bool is_one_host = std::all_of(devices.begin(), devices.end(), [&](const MessageGroup::Rank& device) {
      return device.host == devices[0].host;
    });
    return bytes <= flat_bytes ||
           (is_one_host && bytes * static_cast<int64_t>(devices.size()) <= flat_bytes_on_one_host);
  }

  bool GoesRound(const std::vector<MessageGroup::Rank>& devices, int64_t bytes) const {
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
