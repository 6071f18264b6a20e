#include "cc/ffi/kept_failures.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <sstream>

#include "cc/base/c_function.h"
#include "cc/base/json.h"
#include "cc/base/text.h"

namespace jaxcomm {

void KeptFailures::Keep(const Status& status) try {
  Failure failure{ValidText(status.message()), ValidText(status.record())};
  if (failure.record.empty()) {
    const bool is_late = status.code() == Code::kDeadlineExceeded;
    failure.record = is_late ? "{\"error\":\"DeadlineError\"}" : "{\"error\":\"JaxcommError\"}";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_kept = std::any_of(failures_.begin(), failures_.end(), [&](const Failure& kept) {
    return kept.message == failure.message && kept.record == failure.record;
  });
  if (is_kept) return;
  failures_.push_front(std::move(failure));
  if (failures_.size() > kMost) failures_.pop_back();
} catch (const std::bad_alloc&) {
  // The failure is not kept, but XLA still receives its text.
}

std::string KeptFailures::Find(std::string_view text) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Failure* found = nullptr;
  size_t longest = 0;  // the length of the common prefix of `text` and the found failure's message
  for (const Failure& failure : failures_) {
    const std::string_view message = failure.message;
    const size_t most = std::min(message.size(), text.size());
    const size_t alike = std::mismatch(message.begin(), message.begin() + most, text.begin()).first - message.begin();
    if (alike < std::min(message.size(), kShown) || alike <= longest) continue;
    found = &failure;
    longest = alike;
  }
  if (found == nullptr) return "";
  std::ostringstream out;
  out << "{\"message\":";
  WriteJsonString(out, found->message);
  out << ",\"record\":" << found->record << '}';
  return out.str();
}

KeptFailures& TheFailures() {
  static KeptFailures* const failures = std::make_unique<KeptFailures>().release();
  return *failures;
}

// Returns KeptFailures::Find(shown).
JAXCOMM_EXPORT int jaxcomm_failure(const char* shown, JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] { CopyText(TheFailures().Find(shown), text); });
}

}  // namespace jaxcomm
