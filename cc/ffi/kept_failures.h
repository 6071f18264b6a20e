// The failures that XLA was given as text, so that Python finds the record of one by the text that JAX raises.
//
//   TheFailures().Keep(status);
//   std::string json = TheFailures().Find("DeadlineError: psum #412 over 'data' …");
//
// Keeps the newest kMost failures. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "cc/base/status.h"

namespace jaxcomm {

class KeptFailures {
 public:
  static constexpr size_t kMost = 256;
  // XLA cuts some texts, but none before this many bytes of the message.
  static constexpr size_t kShown = 480;

  // The error of several ranks is kept once.
  void Keep(const Status& status);

  // {"message":"…","record":{"error":"DeadlineError",…}} of the newest failure with whose message the text begins, at
  // least as far as kShown; "": none.
  std::string Find(std::string_view text) const;

 private:
  struct Failure {
    std::string message, record;
  };

  mutable std::mutex mutex_;
  std::deque<Failure> failures_;  // from the newest
};

// Lives until the process ends, as in runtime.h.
KeptFailures& TheFailures();

}  // namespace jaxcomm
