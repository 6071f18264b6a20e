// The C functions by which Python switches the plan of a run; c_function.h says how they end.

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/executor/plan_selector.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {

// The communicator and its next launch, a line for each that has had one.
JAXCOMM_EXPORT int jaxcomm_switch_launches(char* text, int64_t text_capacity, int64_t* size, char* error,
                                           int64_t capacity) {
  return Answer(error, capacity, [&] {
    std::ostringstream lines;
    for (const PlanSelector::Launch& next : TheExecutor().messages().plans().Next())
      lines << next.communicator << " " << next.launch << "\n";
    CopyText(lines.str(), text, text_capacity, size);
  });
}

// The step and the periods of its latest launches, a line for each that has any.
JAXCOMM_EXPORT int jaxcomm_switch_periods(char* text, int64_t text_capacity, int64_t* size, char* error,
                                          int64_t capacity) {
  return Answer(error, capacity, [&] {
    std::ostringstream lines;
    for (const auto& [step, periods] : TheExecutor().messages().plans().Periods()) {
      lines << step;
      for (const double seconds : periods) lines << " " << seconds;
      lines << "\n";
    }
    CopyText(lines.str(), text, text_capacity, size);
  });
}

// From `launches[i]` on, calls on communicator i are to follow the plan, whose ranges begin at `min_bytes` and are
// named one in a line. Of each range the lists of all ranks follow each other in `bytes`, and their sizes in `sizes`;
// where these are 0, and where `plan` is "", calls follow their own lists. `prepared`: 1, or 0 if one of the launches
// has begun.
JAXCOMM_EXPORT int jaxcomm_switch_prepare(const char* plan, int64_t ranks, const int64_t* min_bytes, const char* names,
                                          const int64_t* sizes, const char* bytes, int64_t num_ranges,
                                          const uint64_t* communicators, const uint32_t* launches,
                                          int64_t num_communicators, int* prepared, char* error, int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    std::shared_ptr<PlannedLists> planned;
    if (plan[0] != '\0') {
      planned = std::make_shared<PlannedLists>(PlannedLists{plan, static_cast<uint32_t>(ranks), {}});
      std::istringstream lines(names);
      for (int64_t i = 0; i < num_ranges; ++i) {
        PlannedLists::Range& range = planned->from.emplace_back();
        range.min_bytes = min_bytes[i];
        std::getline(lines, range.name);
        for (int64_t rank = 0; rank < ranks && sizes[i * ranks] > 0; ++rank) {
          const int64_t num_bytes = sizes[i * ranks + rank];
          const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
          if (!words.ok()) return words.status();
          Result<Messages> list = Messages::Decode(words.value().data(), words.value().size());
          if (!list.ok()) return list.status();
          range.lists.push_back(std::make_shared<const Messages>(std::move(list.value())));
          bytes += num_bytes;
        }
      }
    }
    std::vector<PlanSelector::Launch> from;
    for (int64_t i = 0; i < num_communicators; ++i) from.push_back({communicators[i], launches[i]});
    *prepared = TheExecutor().messages().plans().Prepare(planned, from) ? 1 : 0;
    return Status();
  });
}

JAXCOMM_EXPORT int jaxcomm_switch_decide(int commit, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { TheExecutor().messages().plans().Decide(commit != 0); });
}

JAXCOMM_EXPORT int jaxcomm_switch_fail(const char* why, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { TheExecutor().messages().plans().Fail(Status(Code::kInternal, why)); });
}

}  // namespace jaxcomm
