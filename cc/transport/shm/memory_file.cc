#include "cc/transport/shm/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "cc/base/own_descriptors.h"
#include "cc/base/text.h"

namespace jaxcomm::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int64_t kHeaderBytes = (sizeof(FileHeader) + 63) / 64 * 64;

int64_t RoundToPages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Returns the number of bytes of memory that are available without swapping, or -1 if it is unknown.
int64_t AvailableMemory() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/meminfo", "re"), std::fclose);
  char line[128];
  long long kib;
  while (file && std::fgets(line, sizeof(line), file.get()) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) return int64_t{kib} << 10;
  }
  return -1;
}

Status NotReserved(int64_t bytes, const std::string& why, const std::string& cure) {
  return InvalidArgument("the " + FormatBytes(bytes) + " of memory that this process shares with the others of its " +
                         "host cannot be reserved: " + why + ".\n  Cure: " + cure +
                         ", or set JAXCOMM_TRANSPORT=tcp in all processes.");
}

Status NoMemory(int64_t bytes, const std::string& why) {
  return NotReserved(bytes, why, "run fewer processes on this host");
}

// There is no fallback to another kind of file, because only files of memfd_create can be sealed.
Status NoFile(int64_t bytes, int error) {
  const bool has_too_many = error == EMFILE || error == ENFILE;
  const char* const cure = has_too_many ? "raise the limit on open files (`ulimit -n`)"
                                        : "have the container's seccomp profile and the kernel allow memfd_create";
  return NotReserved(bytes, std::string("memfd_create: ") + std::strerror(error), cure);
}

Status NotAPeer(uint32_t process, const std::string& why) {
  return InvalidArgument("process " + std::to_string(process) + " cannot be reached through shared memory: " + why +
                         ".\n  Cure: run the same jaxcomm with the same settings in all processes of this host.");
}

}  // namespace

MemoryFile::MemoryFile(int fd, uint32_t processes, uint32_t slots)
    : fd_(fd),
      header_at_(RoundToPages(sizeof(WritablePart) + int64_t{processes} * kRounds * sizeof(WritablePart::RoundState))),
      slots_at_(header_at_ + RoundToPages(kHeaderBytes + int64_t{processes} * sizeof(PeerChannel))),
      bytes_(slots_at_ + int64_t{slots} * kSlotBytes) {
  CloseInChildren(fd);
}

MemoryFile::~MemoryFile() {
  if (start_ != nullptr) munmap(start_, static_cast<size_t>(bytes_));
  CloseOwn(fd_);
}

PeerChannel& MemoryFile::channel(uint32_t process) const {
  return *(reinterpret_cast<PeerChannel*>(start_ + header_at_ + kHeaderBytes) + process);
}

Result<std::shared_ptr<MemoryFile>> MemoryFile::Create(uint32_t process, uint32_t processes, int64_t arena_bytes) {
  const int64_t slots = arena_bytes / kSlotBytes;
  if (process >= processes || slots + 1 < int64_t{processes} || slots > (1 << 22)) {
    return InvalidArgument("an arena of " + FormatBytes(arena_bytes) + " does not fit process " +
                           std::to_string(process) + " of " + std::to_string(processes) + ".\n  Cure: at least " +
                           FormatBytes(kSlotBytes) + " for each other process, at most 1 TiB.");
  }
  const int fd = memfd_create("jaxcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const int error = fd < 0 ? errno : 0;
  auto memory = std::make_shared<MemoryFile>(fd, processes, static_cast<uint32_t>(slots));
  Status status = fd < 0 ? NoFile(memory->bytes_, error) : memory->Reserve();
  if (!status.ok()) return status;
  if (!memory->Map(PROT_READ | PROT_WRITE)) return NoMemory(memory->bytes_, std::strerror(errno));
  FileHeader& header = memory->header();
  header.magic = kMagic;
  header.process = process;
  header.processes = processes;
  header.slots = static_cast<uint32_t>(slots);
  header.pid = getpid();
  header.nonce_at = reinterpret_cast<uint64_t>(&header.nonce);
  if (getrandom(&header.nonce, sizeof(header.nonce), 0) != sizeof(header.nonce)) {
    return NoMemory(memory->bytes_, "the system returned no random number");
  }
  return memory;
}

Status MemoryFile::Reserve() const {
  rlimit limit;  // exceeding the limit would raise SIGXFSZ
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes_)) {
    return NoMemory(bytes_,
                    "files are limited to " + FormatBytes(static_cast<int64_t>(limit.rlim_cur)) + " (ulimit -f)");
  }
  const int64_t available = AvailableMemory();  // reserving more could make the system kill a process
  if (available >= 0 && available < bytes_) {
    return NoMemory(bytes_, "the system has " + FormatBytes(available) + " available");
  }
  int error;
  do {
    error = fallocate(fd_, 0, 0, bytes_) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0 && fcntl(fd_, F_ADD_SEALS, kSeals) != 0) error = errno;
  return error == 0 ? Status() : NoMemory(bytes_, std::strerror(error));
}

Result<std::shared_ptr<MemoryFile>> MemoryFile::Open(int fd, const MemoryFile& mine, uint32_t process, uint64_t nonce) {
  const FileHeader& own = mine.header();
  auto memory = std::make_shared<MemoryFile>(fd, own.processes, own.slots);
  struct stat file;
  if (fd < 0 || fstat(fd, &file) != 0) return NotAPeer(process, "its memory file is not open");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return NotAPeer(process, "its memory file is not sealed");
  if (file.st_size != memory->bytes_) {
    return NotAPeer(process,
                    "its memory file has " + FormatBytes(file.st_size) + " instead of " + FormatBytes(memory->bytes_));
  }
  if (!memory->Map(PROT_READ)) return NotAPeer(process, std::strerror(errno));
  const FileHeader& header = memory->header();
  if (header.magic != kMagic || header.processes != own.processes || header.slots != own.slots) {
    return NotAPeer(process, "its memory file is of another version or job");
  }
  if (header.process != process || header.nonce != nonce) {
    return NotAPeer(process, "the memory file belongs to another process");
  }
  return memory;
}

bool MemoryFile::Map(int protection) {
  void* const start = mmap(nullptr, static_cast<size_t>(bytes_), protection, MAP_SHARED | MAP_POPULATE, fd_, 0);
  if (start == MAP_FAILED) return false;
  start_ = static_cast<std::byte*>(start);
  return mmap(start, static_cast<size_t>(header_at_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) !=
         MAP_FAILED;
}

}  // namespace jaxcomm::shm
