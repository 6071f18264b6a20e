// The exchange of addresses between the processes of one host: a file in memory, in which each publishes its own, how
// far it has come, and what went wrong. They all succeed, or all get the error of the first that failed.
//
//   Result<std::unique_ptr<Bootstrap>> here = Bootstrap::Open(name, slots);   // a name that nobody uses twice
//   here.value()->offer(slot) = ...;                                            // for each slot of this process
//   Status status = here.value()->Publish(mine, timeout);                          // now there are the others' offers
//   status = here.value()->Confirm(taken, timeout);                              // now all have taken what they need
//   here.value()->Close();                                                       // and used it for the last time
//   here.value()->AllClosed();                                                    // so have all others
//
// Which of several outcomes it is, one word decides that all processes change at once. A process that comes after the
// others have given up is told so at once. Thread-safe after Confirm.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/gpu/executor/fused.h"
#include "cc/gpu/executor/slots.h"

namespace jaxcomm::fused {

class Bootstrap {
 public:
  using Offer = std::array<std::byte, 128>;
  using Timeout = std::chrono::steady_clock::duration;

  static Result<std::unique_ptr<Bootstrap>> Open(const std::string& name, const Slots& slots);
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  Offer& offer(size_t slot) { return shared_->offers[slot]; }

  // `mine` says whether this process can go on. Wait for all others.
  Status Publish(const Status& mine, Timeout timeout) { return Reach(Stage::kPublished, mine, timeout); }
  Status Confirm(const Status& mine, Timeout timeout) { return Reach(Stage::kConfirmed, mine, timeout); }

  void Close();

  // Whether nobody uses what this process offered, or ever will.
  bool AllClosed() const;

 private:
  enum class Stage : uint32_t { kAbsent, kPublished, kConfirmed, kClosed };

  // What all processes see; zero at first.
  struct Shared {
    // Whether all have confirmed, or which process has failed.
    static constexpr uint32_t kOpen = 0, kAllConfirmed = 1, kFirstFailure = 2;
    struct Party {
      std::atomic<Stage> stage;
      Code code;  // of its failure
      char reason[1016];
    };
    std::atomic<uint32_t> outcome;
    Party parties[kMaxRanks];
    Offer offers[kMaxRanks];
  };
  static_assert(std::atomic<Stage>::is_always_lock_free);

  // A process, and its ranks.
  struct Member {
    uint32_t process;
    std::vector<uint32_t> ranks;
  };

  Bootstrap(std::string path, Shared* shared, const Slots& slots);

  Status Reach(Stage stage, const Status& mine, Timeout timeout);
  void Fail(const Status& status);
  Status Overdue(Stage stage, Timeout waited) const;
  bool AllReached(Stage stage) const;
  bool Failed() const { return shared_->outcome >= Shared::kFirstFailure; }

  const std::string path_;
  Shared* const shared_;
  const size_t num_ranks_;
  std::vector<Member> members_;
  size_t me_ = 0;
};

}  // namespace jaxcomm::fused
