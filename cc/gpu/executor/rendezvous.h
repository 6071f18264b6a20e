// Where the processes of one host meet: a file in memory, in which each says what it offers, how far it has come, and
// what went wrong. They all succeed, or all get the error of the first that failed.
//
//   Result<std::unique_ptr<Rendezvous>> here = Rendezvous::Open(name, places);   // a name that nobody uses twice
//   here.value()->offer(place) = ...;                                            // for each place of this process
//   Status status = here.value()->Come(mine, patience);                          // now there are the others' offers
//   status = here.value()->Settle(taken, patience);                              // now all have taken what they need
//   here.value()->Leave();                                                       // and used it for the last time
//   here.value()->Deserted();                                                    // so have all others
//
// Which of several outcomes it is, one word decides that all processes change at once. A process that comes after the
// others have given up is told so at once. Thread-safe after Settle.
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
#include "cc/gpu/executor/places.h"

namespace jaxcomm::fused {

class Rendezvous {
 public:
  using Offer = std::array<std::byte, 128>;
  using Patience = std::chrono::steady_clock::duration;

  static Result<std::unique_ptr<Rendezvous>> Open(const std::string& name, const Places& places);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  Offer& offer(size_t place) { return shared_->offers[place]; }

  // `mine` says whether this process can go on. Wait for all others.
  Status Come(const Status& mine, Patience patience) { return Reach(Stage::kCame, mine, patience); }
  Status Settle(const Status& mine, Patience patience) { return Reach(Stage::kSettled, mine, patience); }

  void Leave();

  // Whether nobody uses what this process offered, or ever will.
  bool Deserted() const;

 private:
  enum class Stage : uint32_t { kAbsent, kCame, kSettled, kLeft };

  // What all processes see; zero at first.
  struct Shared {
    // Whether all have settled, or which process has failed.
    static constexpr uint32_t kOpen = 0, kAllSettled = 1, kFirstFailure = 2;
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

  Rendezvous(std::string path, Shared* shared, const Places& places);

  Status Reach(Stage stage, const Status& mine, Patience patience);
  void Fail(const Status& status);
  Status Overdue(Stage stage, Patience waited) const;
  bool AllReached(Stage stage) const;
  bool Failed() const { return shared_->outcome >= Shared::kFirstFailure; }

  const std::string path_;
  Shared* const shared_;
  const size_t num_ranks_;
  std::vector<Member> members_;
  size_t me_ = 0;
};

}  // namespace jaxcomm::fused
