#include "cc/executor/deadline_status.h"

#include <string>
#include <utility>
#include <vector>

#include "cc/base/errors.h"
#include "cc/base/text.h"

namespace jaxcomm {

Status DeadlineStatus(const MessageCall& call, const MessageCall::Delay& delay, Clock::time_point now,
                      const LastCalls& last_calls, const std::function<bool(const CallId&)>& is_open) {
  const MessageSite& site = call.site();
  const bool arrived = delay.missing.empty();
  const std::vector<uint32_t>& late = arrived ? delay.silent : delay.missing;
  const std::string where = "\n  This call is at " + site.label().where + ".";
  if (late.empty()) {
    return Status(Code::kDeadlineExceeded,
                  "DeadlineError: " + call.Describe() + ": what this process sends has not been taken after " +
                      FormatSeconds(delay.waited) + "." + where,
                  ErrorRecord("DeadlineError", call.name()).Text());
  }
  // Of several groups the first that lacks a rank.
  const uint32_t group = site.ranks()[late[0]].group;
  const auto names = [&](const std::vector<uint32_t>& ranks) {
    std::vector<uint32_t> found;
    for (const uint32_t rank : ranks) {
      if (site.ranks()[rank].group == group) found.push_back(site.NameOf(rank));
    }
    return found;
  };
  const std::vector<uint32_t>& all = site.groups()[group];
  const std::string everybody = site.names_ranks() ? "the group " + JoinRanks(names(all)) : std::to_string(all.size());
  std::string places;
  for (const uint32_t rank : late) {
    places += "\n  Rank " + std::to_string(site.NameOf(rank)) + " is " + site.PlaceOf(rank);
    const LastCall* const last = arrived ? nullptr : last_calls.Find(site.ranks()[rank].device);
    if (last != nullptr) {
      const std::string since = FormatSeconds(now - last->at);
      const bool open = is_open(last->id);
      places += (open ? ", and is in " : ", and was last in ") + last->text +
                (open ? ", for " + since : ", " + since + " ago");
    }
    places += ".";
  }
  return DeadlineExceeded{call.name(), names(late),  names(delay.waiting),
                          everybody,   delay.waited, arrived ? "sent all messages" : "arrived"}
      .status(/*more=*/places + where);
}

}  // namespace jaxcomm
