// The description of a call site. This record is the only attribute of the site's custom call.
//
//   Result<SiteRecord> record = SiteRecord::Decode(attribute);
//
// jaxcomm/ffi/site_record.py writes a record as text: the fields of SiteRecord in order, each followed by a space. An
// integer is written in decimal, and a real number as the integer of its 64 bits. A text is written as its number of
// bytes, a colon and the bytes, and a list as its length and its elements.
//
// A record may come from an untrusted file. The record's size bounds the time and memory of Decode, and Decode refuses
// fields that do not fit together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/kind.h"
#include "cc/executor/decide/schedule_selector.h"
#include "cc/executor/sites/site_leaves.h"
#include "cc/kernels/types.h"

namespace jaxcomm {

struct SiteRecord {
  static constexpr size_t kMaxBytes = 64 << 20;

  struct Device {
    uint32_t process;
    int32_t number;
  };
  struct Group {
    std::vector<Device> ranks;
    // The names of the schedules (programs or lists of messages) that the group's calls run. A group of one rank has no
    // name. A larger group has one name, with two exceptions. If the record has a rule, the group may have a name for
    // each schedule of the selector, then a name for each lost rail. If groups_by_operand is set, the group has one
    // name for 2 ranks, one for 3 ranks, and so on.
    std::vector<std::string> schedules;
  };
  // A rail that the host of `rank` may lack. `rail` is the rail's name.
  struct LostRail {
    uint32_t rank;
    std::string rail;
  };
  // Identifies a call between processes. The fields are equal in all processes of the call; see Site in
  // jaxcomm/collectives/request.py.
  struct Between {
    int64_t module, lowering, number;
    std::string line;
  };

  static Result<SiteRecord> Decode(std::string_view bytes);

  // Returns the call's name for error texts, such as "psum over 'data'".
  std::string who() const { return name + " over '" + axes + "'"; }

  std::string name, axes;
  Kind kind;
  Reduction reduction;
  std::string plan;
  bool groups_by_operand;  // whether the first operand divides each of `groups` further
  std::vector<Group> groups;
  std::optional<ScheduleSelector::Rule> rule;  // selects each call's schedule; nullopt if there is only one schedule
  std::vector<LostRail> lost_rails;            // each lost rail has a separate schedule
  std::optional<AllowedLoss> loss;
  std::optional<Between> between;  // nullopt if all ranks are in one process
  bool is_in_place;                // only for all-reduces: whether each result has its operand's memory
};

}  // namespace jaxcomm
