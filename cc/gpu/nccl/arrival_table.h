// Which calls the ranks of one host have come to: a file that they share in memory.
//
//   auto arrivals = ArrivalTable::Open("/dev/shm/…", ranks);
//   arrivals.value()->Arrive(rank, number);    // calls count from 1; number 0: the rank is here
//   arrivals.value()->Missing(number);         // those of this host that have not come to it
//
// NCCL does not say for whom it waits. Of ranks on other hosts nothing is known, so they are never missing here.
// Thread-safe, and safe between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::nccl {

class ArrivalTable {
 public:
  static Result<std::unique_ptr<ArrivalTable>> Open(const std::string& path, uint32_t ranks);
  ~ArrivalTable();
  ArrivalTable(const ArrivalTable&) = delete;
  ArrivalTable& operator=(const ArrivalTable&) = delete;

  void Arrive(uint32_t rank, uint64_t number) { entries_[rank].store(number + 1); }

  // Those that are known to have come to a call, and not to have come.
  std::vector<uint32_t> Here(uint64_t number) const;
  std::vector<uint32_t> Missing(uint64_t number) const;

 private:
  // The number of a rank's last call, plus one. 0: nothing is known of it.
  using Entry = std::atomic<uint64_t>;
  static_assert(Entry::is_always_lock_free);

  ArrivalTable(Entry* entries, uint32_t ranks) : entries_(entries), ranks_(ranks) {}

  Entry* const entries_;
  const uint32_t ranks_;
};

}  // namespace jaxcomm::nccl
