// Keeps the failures that XLA has received as text. Python finds a failure's record by the text that JAX raises.
//
//   TheFailures().Keep(status);
//   std::string json = TheFailures().Find("DeadlineError: psum #412 over 'data' …");
//   json = TheFailures().Await(/*seen=*/0, /*waits=*/true);   // the first failure
//
// Keeps the newest kMost failures. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "cc/base/status.h"

namespace jaxcomm {

class KeptFailures {
 public:
  static constexpr size_t kMost = 256;
  // XLA truncates some error texts, but keeps at least this many bytes of jaxcomm's texts.
  static constexpr size_t kShown = 480;

  // Keeps a failure. If several ranks report the same failure, it is kept only once.
  void Keep(const Status& status);

  // Returns {"message":"…","record":{"error":"DeadlineError",…}} of the failure whose text matches the most bytes at
  // the start of `text`. If several failures match the same number of bytes, returns the newest of them. A match covers
  // the failure's whole text, or at least kShown bytes of it. Returns "" if no failure matches.
  std::string Find(std::string_view text) const;

  // Returns the failure after the first `seen` failures, in the form of Find. If some of the later failures are no
  // longer kept, returns the oldest failure that is kept. If there is no later failure, waits for one, or returns "" if
  // `waits` is false.
  std::string Await(int64_t seen, bool waits) const;

 private:
  struct Failure {
    std::string message, record;

    std::string Json() const;
  };

  mutable std::mutex mutex_;
  mutable std::condition_variable has_failed_;
  std::deque<Failure> failures_;  // newest first
  int64_t count_ = 0;             // the number of failures so far
};

// Never destroyed; runtime.h has the reason.
KeptFailures& TheFailures();

}  // namespace jaxcomm
