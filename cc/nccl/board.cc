#include "cc/nccl/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace jaxcomm::nccl {

Result<std::unique_ptr<Board>> Board::Open(const std::string& path, uint32_t ranks) {
  const size_t bytes = ranks * sizeof(Entry);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  // Growing gives zeros, and does nothing where another rank has done it.
  void* const memory = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                           : MAP_FAILED;
  const int error = errno;
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) {
    return InvalidArgument("the ranks' board " + path + " cannot be shared: " + std::strerror(error));
  }
  return std::unique_ptr<Board>(new Board(static_cast<Entry*>(memory), ranks));
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
