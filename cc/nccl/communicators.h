// A rank's NCCL communicators: one per rail, and one per group that takes turns.
//
//   auto made = Communicators::Create(nccl, {ranks, rank, {{"", id}}, partitions}, Clock::now() + deadline);
//   Comm all = made.value()->rail(0), mine = made.value()->group(iteration);
//   Status status = made.value()->Await("psum #7 over 'data'", done, start, deadline, missing);
//
// All are created at once and in one order: rails as listed, then one split of the first rail for each partition. Every
// rank must list the same, and issue on several rails in the order in which they are listed. Nothing waits longer than
// its deadline; after a fault all communicators are aborted, and only Without gives new ones. Not thread-safe but for
// Check and Await. The destructor ends what still runs and frees everything; unlike NCCL's destroy, it waits for
// nobody.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/library.h"

namespace jaxcomm::nccl {

using Clock = std::chrono::steady_clock;

// A network that NCCL drives by a module of its own ("IB", "Socket"; empty: NCCL chooses), and the id by which the
// ranks find each other on it, which one of them made.
struct RailId {
  std::string module;
  Id id;
};

struct Membership {
  uint32_t ranks;
  uint32_t rank;
  std::vector<RailId> rails;
  std::vector<std::vector<uint32_t>> partitions;  // per iteration of the period, by rank: its group
};

// Waits until what was begun on a communicator is under way: NCCL returns at once, and goes on by itself. An error says
// that `what` failed, and beyond the deadline also `late`.
Status Settle(const Library& nccl, Comm comm, const std::string& what, const std::string& late,
              Clock::time_point deadline);

class Communicators {
 public:
  using Missing = std::function<std::vector<uint32_t>()>;  // ranks that are known not to have arrived

  static Result<std::unique_ptr<Communicators>> Create(const Library& nccl, Membership membership,
                                                       Clock::time_point deadline);
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  const Library& library() const { return nccl_; }
  uint32_t rank() const { return membership_.rank; }
  uint32_t ranks() const { return membership_.ranks; }
  Comm rail(size_t index) const { return rails_[index].comm; }
  Comm group(size_t partition) const { return groups_[partition].comm; }
  size_t num_partitions() const { return groups_.size(); }
  // The ranks of this rank's group, ascending: their places are their ranks in it.
  std::vector<uint32_t> members(size_t partition) const;

  // The first asynchronous error of a communicator; ok if there is none. Aborts all if there is one.
  Status Check();

  // Aborts all, and makes this their error.
  Status Fail(Status status);

  // Waits until `done`, an error or the deadline, and aborts all but in the first case. `what` names the call.
  Status Await(const std::string& what, const std::function<bool()>& done, Clock::time_point start,
               Clock::time_point deadline, const Missing& missing);

  // Communicators of the ranks but those that are gone, made from these, which are not to be used any more. All that
  // remain must call it, with the same list. They have no groups: those are for other ranks.
  Result<std::unique_ptr<Communicators>> Without(const std::vector<uint32_t>& gone, Clock::time_point deadline);

 private:
  struct Named {
    std::string name;
    Comm comm;
  };

  Communicators(const Library& nccl, Membership membership);
  Status Make(Clock::time_point deadline);
  Status Settled(const std::string& what, Comm comm, Clock::time_point deadline) const;
  Status FirstError();
  void Abort();
  std::string Self() const;

  const Library& nccl_;
  const Membership membership_;
  std::mutex mutex_;
  std::vector<Named> rails_, groups_;
  Status failure_;  // of all of them
};

}  // namespace jaxcomm::nccl
