#include "cc/gpu/nccl/arrival_table.h"

#include <sys/mman.h>

#include "cc/base/shared_file.h"

namespace jaxcomm::nccl {

Result<std::unique_ptr<ArrivalTable>> ArrivalTable::Open(const std::string& path, uint32_t ranks) {
  const Result<void*> memory = MapSharedFile(path, ranks * sizeof(Entry));
  if (!memory.ok()) return Status(memory.status().code(), "the ranks' arrival table " + memory.status().message());
  return std::unique_ptr<ArrivalTable>(new ArrivalTable(static_cast<Entry*>(memory.value()), ranks));
}

ArrivalTable::~ArrivalTable() { munmap(entries_, ranks_ * sizeof(Entry)); }

std::vector<uint32_t> ArrivalTable::Here(uint64_t number) const {
  std::vector<uint32_t> found;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (entries_[rank].load() > number) found.push_back(rank);
  }
  return found;
}

std::vector<uint32_t> ArrivalTable::Missing(uint64_t number) const {
  std::vector<uint32_t> found;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const uint64_t entry = entries_[rank].load();
    if (entry != 0 && entry <= number) found.push_back(rank);
  }
  return found;
}

}  // namespace jaxcomm::nccl
