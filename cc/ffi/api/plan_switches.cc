// C functions that Python calls to switch the plan of a run. c_function.h defines how they report errors.

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/executor/decide/plan_selector.h"
#include "cc/ffi/api/arguments.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {

// Returns a line for each communicator that has had launches: the communicator and its next launch.
JAXCOMM_EXPORT int jaxcomm_switch_launches(JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] {
    std::ostringstream lines;
    for (const PlanSelector::Launch& next : TheExecutor().messages().plans().Next())
      lines << next.communicator << " " << next.launch << "\n";
    CopyText(lines.str(), text);
  });
}

// Returns a line for each step: the step's hash, then the seconds between the beginnings of its latest launches.
JAXCOMM_EXPORT int jaxcomm_switch_periods(JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] {
    std::ostringstream lines;
    for (const auto& [step, periods] : TheExecutor().messages().plans().Periods()) {
      lines << step;
      for (const double seconds : periods) lines << " " << seconds;
      lines << "\n";
    }
    CopyText(lines.str(), text);
  });
}

// Prepares a change of plan. `prepared` receives 1 on success, or 0 if one of the launches has begun or another change
// is prepared.
JAXCOMM_EXPORT int jaxcomm_switch_prepare(const PlanSwitch* given, int* prepared, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    std::shared_ptr<PlannedLists> planned;
    if (given->plan[0] != '\0') {
      planned = std::make_shared<PlannedLists>(PlannedLists{given->plan, static_cast<uint32_t>(given->ranks), {}});
      std::istringstream lines(given->names);
      const char* bytes = given->bytes;
      for (int64_t i = 0; i < given->ranges; ++i) {
        PlannedLists::Range& range = planned->from.emplace_back();
        range.min_bytes = given->min_bytes[i];
        std::getline(lines, range.name);
        const int64_t* const sizes = given->sizes + i * given->ranks;
        for (int64_t rank = 0; rank < given->ranks && sizes[0] > 0; ++rank) {
          const Result<std::vector<uint32_t>> words = ReadWords(bytes, sizes[rank]);
          if (!words.ok()) return words.status();
          Result<Messages> list = Messages::Decode(words.value().data(), words.value().size());
          if (!list.ok()) return list.status();
          range.lists.push_back(std::make_shared<const Messages>(std::move(list.value())));
          bytes += sizes[rank];
        }
      }
    }
    std::vector<PlanSelector::Launch> from;
    for (int64_t i = 0; i < given->num_communicators; ++i) {
      from.push_back({given->communicators[i], given->launches[i]});
    }
    *prepared = TheExecutor().messages().plans().Prepare(planned, from) ? 1 : 0;
    return Status();
  });
}

JAXCOMM_EXPORT int jaxcomm_switch_decide(int commit, JaxcommText* error) {
  return Answer(error, [&] { TheExecutor().messages().plans().Decide(commit != 0); });
}

JAXCOMM_EXPORT int jaxcomm_switch_fail(const char* why, JaxcommText* error) {
  return Answer(error, [&] { TheExecutor().messages().plans().Fail(Status(Code::kInternal, why)); });
}

}  // namespace jaxcomm
