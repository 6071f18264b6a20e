#include "cc/transport/rails/silent_rails.h"

namespace jaxcomm {

SilentRails::Found SilentRails::Look(const std::vector<std::optional<SendProgress>>& rails, Clock::time_point now) {
  const bool has_stalled = now - looked_ > 3 * kLook;
  looked_ = now;
  Found found{{}, {}, true};
  for (uint32_t i = 0; i < rails.size(); ++i) {
    Rail& rail = rails_[i];
    const bool progresses = rails[i] && rails[i]->confirmed != rail.confirmed;
    if (progresses) {
      rail.confirmed = rails[i]->confirmed;
      rail.progress = now;
    }
    if (has_stalled || progresses || !rails[i] || rails[i]->unanswered == 0) rail.since = now;
    found.is_quiet = found.is_quiet && !(rails[i] && rails[i]->unanswered > 0);
  }
  for (uint32_t i = 0; i < rails.size(); ++i) {
    const Rail& rail = rails_[i];
    const auto silence = now - rail.since;
    if (silence < kLimit / 2) continue;
    bool is_alone = true;
    for (uint32_t other = 0; other < rails.size(); ++other) {
      if (other == i || !rails[other]) continue;
      if (rails_[other].progress > rail.since) {
        is_alone = false;
      } else if (rails[other]->unanswered == 0 && now - rails_[other].asked >= kLimit / 2) {
        rails_[other].asked = now;
        found.ask.push_back(other);
      }
    }
    const bool has_timer = rails[i]->unanswered == 1 || rails[i]->repeats;
    if (!is_alone && silence >= (has_timer ? kTimerLimit : kLimit)) found.silent.push_back(i);
  }
  return found;
}

}  // namespace jaxcomm
