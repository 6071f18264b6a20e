#include "cc/gpu/executor/places.h"

#include <algorithm>
#include <string>

namespace jaxcomm::fused {

Result<Places> Places::Find(const std::vector<Seat>& seats, uint32_t process) {
  Places places;
  places.process = process;
  for (uint32_t rank = 0; rank < seats.size(); ++rank) {
    if (rank == 0 || seats[rank] != seats[rank - 1]) {
      if (std::count(seats.begin(), seats.begin() + rank, seats[rank]) > 0) {
        return InvalidArgument("ranks of one device must be neighbours");
      }
      const auto its = static_cast<uint32_t>(seats[rank]);
      if (its >> 16 == process) places.here.push_back(places.all.size());
      places.all.push_back({its >> 16, static_cast<int>(its & 0xffff), rank, 0});
    }
    ++places.all.back().num_ranks;
    places.of_rank.push_back(places.all.size() - 1);
  }
  if (places.here.empty()) {
    return InvalidArgument("process " + std::to_string(process) + " has none of its ranks");
  }
  return places;
}

}  // namespace jaxcomm::fused
