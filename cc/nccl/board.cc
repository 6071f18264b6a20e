#include "cc/nccl/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace jaxcomm::nccl {

Result<std::unique_ptr<Board>> Board::Open(const std::string& path, uint32_t ranks) {
  const size_t bytes = ranks * sizeof(Counter);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  // Growing gives zeros, and does nothing where another rank has done it.
  void* const memory = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                           : MAP_FAILED;
  const int error = errno;
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) {
    return InvalidArgument("the ranks' board " + path + " cannot be shared: " + std::strerror(error));
  }
  return std::unique_ptr<Board>(new Board(static_cast<Counter*>(memory), ranks));
}

Board::~Board() { munmap(counters_, ranks_ * sizeof(Counter)); }

void Board::Arrive(uint32_t rank, uint64_t call) { counters_[rank].store(call + 1); }

std::vector<uint32_t> Board::Missing(uint64_t call) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const uint64_t known = counters_[rank].load();
    if (known != 0 && known < call + 1) missing.push_back(rank);
  }
  return missing;
}

}  // namespace jaxcomm::nccl
