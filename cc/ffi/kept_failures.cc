#include "cc/ffi/kept_failures.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>

#include "cc/base/c_function.h"
#include "cc/base/json.h"
#include "cc/base/text.h"

namespace jaxcomm {

void KeptFailures::Keep(const Status& status) {
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
  ++count_;
  has_failed_.notify_all();
  if (failures_.size() > kMost) failures_.pop_back();
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
  return found == nullptr ? "" : found->Json();
}

std::string KeptFailures::Await(int64_t seen, bool waits) const {
  std::unique_lock<std::mutex> lock(mutex_);
  if (waits) has_failed_.wait(lock, [&] { return count_ > seen; });
  if (count_ <= seen) return "";
  return failures_[std::min(static_cast<size_t>(count_ - seen), failures_.size()) - 1].Json();
}

std::string KeptFailures::Failure::Json() const {
  std::ostringstream out;
  out << "{\"message\":";
  WriteJsonString(out, message);
  out << ",\"record\":" << record << '}';
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

// Returns KeptFailures::Await(seen, waits).
JAXCOMM_EXPORT int jaxcomm_await_failure(int64_t seen, int waits, JaxcommText* text, JaxcommText* error) {
  return Answer(error, [&] { CopyText(TheFailures().Await(seen, waits != 0), text); });
}

}  // namespace jaxcomm
