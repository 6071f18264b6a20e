// The C functions by which Python switches the plans of calls between processes; c_function.h says how they end.

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cc/executor/plan_switches.h"
#include "cc/ffi/c_function.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {

// The module and its next launch, a line for each that has been launched.
JAXCOMM_EXPORT int jaxcomm_switch_launches(char* text, int64_t text_capacity, int64_t* size, char* error,
                                           int64_t capacity) {
  return Answer(error, capacity, [&] {
    std::ostringstream lines;
    for (const PlanSwitches::Launch& next : ThePlanSwitches().Next())
      lines << next.module << " " << next.launch << "\n";
    CopyText(lines.str(), text, text_capacity, size);
  });
}

// From `launches[i]` on module i is to follow the plan, whose lists are named one in a line, each from `min_bytes` on;
// "" for `plan`: its calls' own lists. `prepared`: 1, or 0 if one of the launches has begun.
JAXCOMM_EXPORT int jaxcomm_switch_prepare(const char* plan, int64_t ranks, const int64_t* min_bytes, const char* lists,
                                          int64_t num_lists, const uint64_t* modules, const uint32_t* launches,
                                          int64_t num_modules, int* prepared, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    std::shared_ptr<PlannedLists> planned;
    if (plan[0] != '\0') {
      planned = std::make_shared<PlannedLists>(PlannedLists{plan, static_cast<uint32_t>(ranks), {}});
      std::istringstream lines(lists);
      std::string list;
      for (int64_t i = 0; i < num_lists && std::getline(lines, list); ++i)
        planned->from.emplace_back(min_bytes[i], list);
    }
    std::vector<PlanSwitches::Launch> from;
    for (int64_t i = 0; i < num_modules; ++i) from.push_back({modules[i], launches[i]});
    *prepared = ThePlanSwitches().Prepare(planned, from) ? 1 : 0;
  });
}

JAXCOMM_EXPORT int jaxcomm_switch_decide(int commit, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { ThePlanSwitches().Decide(commit != 0); });
}

JAXCOMM_EXPORT int jaxcomm_switch_fail(const char* why, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { ThePlanSwitches().Fail(Status(Code::kInternal, why)); });
}

}  // namespace jaxcomm
