// The memory that libfabric reads and stores: slots for one frame each.
//
//   auto arena = Arena::Create({/*small=*/128, /*large=*/64});   // numbers of slots for each direction
//   Slot* slot = arena->Take(kLarge);                  // to send from; nullptr if no slot is free
//   arena->GiveBack(slot);                             // libfabric has sent the frame
//   arena->Release(slot);                              // on any thread: a view of a received frame has ended
//   for (Slot* slot : arena->Released()) ...           // receive into these slots again
//
// A provider may store bytes of a message even after the message's receive has been cancelled. These bytes go into
// slots only, never into the memory of a caller. Thread-safe: Release. The other functions need the transport's lock.
#pragma once

#include <rdma/fabric.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/own_descriptors.h"
#include "cc/base/status.h"
#include "cc/transport/fabric/head.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// The two sizes of frames. Each size has its own tag, slots and window. Small frames are delivered in order.
enum FrameSize : size_t { kSmall, kLarge, kFrameSizes };

constexpr std::array<size_t, kFrameSizes> kFrameBytes = {kHeadBytes + Transport::kMaxNotice,
                                                         kHeadBytes + Transport::kMaxMessage};

struct Slot {
  fi_context2 context;  // the first member, because a completion's context is also the address of its slot
  std::byte* data;
  FrameSize size;
  bool sends;
  // The process to or from which the frame goes, and the number of the path to this process.
  uint32_t process = 0;
  uint64_t path = 0;
};

class Arena {
 public:
  using Counts = std::array<size_t, kFrameSizes>;

  static Result<std::shared_ptr<Arena>> Create(const Counts& counts) {
    constexpr size_t kPage = 4096;
    Counts stride;
    size_t bytes = 0;
    for (const FrameSize size : {kSmall, kLarge}) {
      stride[size] = (kFrameBytes[size] + kPage - 1) / kPage * kPage;
      bytes += 2 * counts[size] * stride[size];
    }
    std::shared_ptr<Arena> arena(new Arena(bytes));
    if (arena->memory_ == MAP_FAILED || arena->released_descriptor_ < 0) {
      return Status(Code::kInternal, std::string("no memory for frames can be made: ") + std::strerror(errno));
    }
    auto* at = static_cast<std::byte*>(arena->memory_);
    for (const FrameSize size : {kSmall, kLarge}) {
      for (size_t i = 0; i < 2 * counts[size]; ++i, at += stride[size]) {
        arena->slots_.push_back(std::make_unique<Slot>(Slot{{}, at, size, /*sends=*/i < counts[size]}));
        Slot* const slot = arena->slots_.back().get();
        (slot->sends ? arena->free_[size] : arena->released_).push_back(slot);
      }
    }
    return arena;
  }
  Arena(const Arena&) = delete;
  ~Arena() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
    CloseOwn(released_descriptor_);
  }

  std::byte* memory() const { return static_cast<std::byte*>(memory_); }
  size_t bytes() const { return bytes_; }
  // Becomes readable when a slot is released.
  int released_descriptor() const { return released_descriptor_; }

  // Returns whether libfabric still sends from a slot.
  bool has_sends() const { return 2 * (free_[kSmall].size() + free_[kLarge].size()) != slots_.size(); }
  Slot* Take(FrameSize size) {
    if (free_[size].empty()) return nullptr;
    Slot* const slot = free_[size].back();
    free_[size].pop_back();
    return slot;
  }
  void GiveBack(Slot* slot) { free_[slot->size].push_back(slot); }

  void Release(Slot* slot) {
    std::lock_guard<std::mutex> lock(mutex_);
    released_.push_back(slot);
    const uint64_t one = 1;
    if (write(released_descriptor_, &one, sizeof(one)) < 0) return;  // already readable
  }
  // Returns the released slots. The first call returns all slots that receive.
  std::vector<Slot*> Released() {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t ignored;
    if (read(released_descriptor_, &ignored, sizeof(ignored)) < 0 && released_.empty()) return {};
    std::vector<Slot*> released;
    released.swap(released_);
    return released;
  }

 private:
  explicit Arena(size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        released_descriptor_(OpenOwn([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {}

  const size_t bytes_;
  void* const memory_;
  const int released_descriptor_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::array<std::vector<Slot*>, kFrameSizes> free_;
  std::mutex mutex_;
  std::vector<Slot*> released_;
};

}  // namespace jaxcomm
