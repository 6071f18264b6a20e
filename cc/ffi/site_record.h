// The description of a call site: the one attribute of its custom call.
//
//   Result<SiteRecord> record = SiteRecord::Decode(attribute);
//
// jaxcomm/ffi/site_record.py writes it: text of fields, each followed by a space. A number is decimal, a real number is
// its 64 bits as a whole number, a text is its number of bytes, a colon and the bytes, a list is its length and its
// elements. The fields are those of SiteRecord, in their order.
//
// A record may come from a file that anybody wrote: Decode is bounded in time and memory by the record's bytes, and
// refuses what does not fit together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/kind.h"
#include "cc/executor/schedule_selector.h"
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
    // The names of the programs or lists of messages that its calls run. One rank: none. Otherwise one; or, if there is
    // a rule, those of its selector's schedules and then those for its lost rails; or, with groups by operand, those
    // for 2, 3, … ranks.
    std::vector<std::string> schedules;
  };
  // The host of this rank lacks the rail of this name.
  struct LostRail {
    uint32_t rank;
    std::string rail;
  };
  // Of a sum that may lose packets: the share of each leaf, in segments that are important or not.
  struct Loss {
    std::vector<double> shares;
    int64_t segment_bytes;
  };
  // How the processes that a call spans name it; see Site in jaxcomm/collectives/request.py.
  struct Between {
    int64_t module, lowering, number;
    std::string line;
  };

  static Result<SiteRecord> Decode(std::string_view bytes);

  // "psum over 'data'"
  std::string who() const { return name + " over '" + axes + "'"; }

  std::string name, axes;
  Kind kind;
  Reduction reduction;
  std::string plan;
  bool groups_by_operand;  // the first one has the group of every rank, within these
  std::vector<Group> groups;
  std::optional<ScheduleSelector::Rule> rule;  // of the calls that run one of several schedules
  std::vector<LostRail> lost_rails;            // of these calls, each with a schedule
  std::optional<Loss> loss;
  std::optional<Between> between;  // processes; none: within one
};

}  // namespace jaxcomm
