// A rank's NCCL communicators: one per rail, and one per group that takes turns.
//
//   auto made = Communicators::Create(nccl, {ranks, rank, {{"", id}}, partitions}, board, Clock::now() + deadline);
//   Comm all = made.value()->rail(0), mine = made.value()->group(iteration);
//   Status status = made.value()->Await(attendance, done, start, deadline);
//
// All are created at once and in one order: rails as listed, then one split of the first rail for each partition. Every
// rank must list the same, and issue on several rails in the order in which they are listed. Nothing waits longer than
// its deadline, unless the environment has NCCL block (NCCL_COMM_BLOCKING=1). After a fault whatever runs on any of
// them is stopped, and only Without gives new ones. Not thread-safe but for Check, Fail and Await. The destructor ends
// what still runs and frees everything; unlike NCCL's destroy, it waits for nobody.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/board.h"
#include "cc/nccl/carrier.h"
#include "cc/nccl/library.h"
#include "cc/nccl/settle.h"

namespace jaxcomm::nccl {

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

class Communicators : public Carrier {
 public:
  // The rank first tells the board that it is here. `board` may be null; it must outlive what is made.
  static Result<std::unique_ptr<Communicators>> Create(const Library& nccl, Membership membership, Board* board,
                                                       Clock::time_point deadline);
  ~Communicators() override;

  Comm rail(size_t index) const { return rails_[index].comm; }
  Comm group(size_t partition) const { return groups_[partition].comm; }
  size_t num_partitions() const { return groups_.size(); }
  std::string Self() const;  // how errors begin: "NCCL, rank 0 of 4: "
  // The ranks of this rank's group, ascending: their places are their ranks in it.
  std::vector<uint32_t> members(size_t partition) const;

  // Communicators of the ranks but those that are gone, made from these, which are not to be used any more, whether or
  // not they have failed. All that remain must call it, with the same list. They have no groups: those are for other
  // ranks. `board` is for the ranks as they are then numbered.
  Result<std::unique_ptr<Communicators>> Without(const std::vector<uint32_t>& gone, Board* board,
                                                 Clock::time_point deadline);

 protected:
  Status FirstError() override;
  Status Stop(Status fault) override;

 private:
  struct Named {
    std::string name;
    const char* module;  // null: NCCL chooses
    Comm comm = nullptr;
  };

  Communicators(const Library& nccl, Membership membership, Board* board);
  Status Make(Clock::time_point deadline);
  Status MakeGroup(const std::vector<uint32_t>& partition, Clock::time_point deadline);
  Status Born(const std::string& what, Outcome begun, Comm parent, const Named& child, Clock::time_point deadline);
  Status Settled(const std::string& what, Comm comm, Clock::time_point deadline) const;
  void Revoke();
  void Abort();

  const Membership membership_;
  const Board* const board_;
  std::deque<Named> rails_, groups_;  // NCCL writes into them while it makes a communicator: none may move
};

}  // namespace jaxcomm::nccl
