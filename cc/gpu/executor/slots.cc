#include "cc/gpu/executor/slots.h"

#include <algorithm>
#include <string>

namespace jaxcomm::fused {

Result<Slots> Slots::Find(const std::vector<DeviceKey>& keys, uint32_t process) {
  Slots slots;
  slots.process = process;
  for (uint32_t rank = 0; rank < keys.size(); ++rank) {
    if (rank == 0 || keys[rank] != keys[rank - 1]) {
      if (std::count(keys.begin(), keys.begin() + rank, keys[rank]) > 0) {
        return InvalidArgument("ranks of one device must be neighbours");
      }
      const auto its = static_cast<uint32_t>(keys[rank]);
      if (its >> 16 == process) slots.here.push_back(slots.all.size());
      slots.all.push_back({its >> 16, static_cast<int>(its & 0xffff), rank, 0});
    }
    ++slots.all.back().num_ranks;
    slots.of_rank.push_back(slots.all.size() - 1);
  }
  if (slots.here.empty()) {
    return InvalidArgument("process " + std::to_string(process) + " has none of its ranks");
  }
  return slots;
}

}  // namespace jaxcomm::fused
