#include "cc/nccl/board.h"

#include <sys/mman.h>

#include "cc/base/shared_file.h"

namespace jaxcomm::nccl {

Result<std::unique_ptr<Board>> Board::Open(const std::string& path, uint32_t ranks) {
  const Result<void*> memory = MapSharedFile(path, ranks * sizeof(Entry));
  if (!memory.ok()) return Status(memory.status().code(), "the ranks' board " + memory.status().message());
  return std::unique_ptr<Board>(new Board(static_cast<Entry*>(memory.value()), ranks));
}

Board::~Board() { munmap(entries_, ranks_ * sizeof(Entry)); }

void Board::Arrive(uint32_t rank, CallNumber call) { entries_[rank].store((call.number + 1ull) << 32 | call.print); }

template <typename Condition>
std::vector<uint32_t> Board::Known(const std::vector<uint32_t>& members, Condition condition) const {
  std::vector<uint32_t> found;
  for (const uint32_t rank : members) {
    const uint64_t entry = entries_[rank].load();
    if (entry == 0) continue;
    const CallNumber at{static_cast<uint32_t>((entry >> 32) - 1), static_cast<uint32_t>(entry)};
    if (condition(at)) found.push_back(rank);
  }
  return found;
}

std::vector<uint32_t> Board::Here(CallNumber call, const std::vector<uint32_t>& members) const {
  return Known(members, [call](CallNumber at) { return at.number >= call.number; });
}

std::vector<uint32_t> Board::Missing(CallNumber call, const std::vector<uint32_t>& members) const {
  return Known(members, [call](CallNumber at) { return at.number < call.number; });
}

std::vector<uint32_t> Board::Astray(CallNumber call, const std::vector<uint32_t>& members) const {
  return Known(members, [call](CallNumber at) { return at.number == call.number && at.print != call.print; });
}

}  // namespace jaxcomm::nccl
