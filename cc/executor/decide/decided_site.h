// The properties of a call site between processes that determine which schedules the site's calls run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/executor/decide/schedule_selector.h"

namespace jaxcomm {

class DecidedSite {
 public:
  struct Place {
    uint32_t process, host;
  };

  virtual uint64_t communicator() const = 0;
  virtual uint64_t step() const = 0;     // a hash of the step that contains the site
  virtual uint32_t process() const = 0;  // the number of this process
  virtual size_t num_ranks() const = 0;
  virtual Place place(uint32_t rank) const = 0;
  // Null if all calls run one schedule or follow the plan of the run.
  virtual ScheduleSelector* selector() const = 0;
  virtual bool follows_plans() const = 0;

  // The process that decides on the schedules of calls. Called only if there is a selector.
  uint32_t decider() const { return place(selector()->decider()).process; }
  bool decides() const { return selector() != nullptr && decider() == process(); }

 protected:
  DecidedSite() = default;
  DecidedSite(const DecidedSite&) = default;
  ~DecidedSite() = default;
};

}  // namespace jaxcomm
