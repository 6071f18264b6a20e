// Memory of this rank that the others of its communicators reach, and theirs that it reaches.
//
//   Result<std::unique_ptr<Window>> window = Window::Allocate(ranks, bytes);
//   Status status = window.value()->Register(attendance, deadline);   // with all ranks, which give as many bytes
//   std::byte* theirs = window.value()->Of(rank);
//   Result<std::byte*> at_once = window.value()->Everywhere();        // with all ranks
//
// For ranks whose devices load from and store to each other: those that NVLink connects, on one host or in one rack.
// Ranks must register windows, and end them, in the same order: NCCL gives each the next free place that it has itself,
// and an address of all ranks stands for one place.
// Needs the device of the communicators to be the current one. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/attendance.h"
#include "cc/nccl/communicators.h"

namespace jaxcomm::nccl {

class Window {
 public:
  static Result<std::unique_ptr<Window>> Allocate(std::shared_ptr<Communicators> ranks, size_t bytes);
  // No kernel of this rank may use it any more. Others may still look: the pages live until all have let go of them.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::byte* memory() const { return static_cast<std::byte*>(given_->memory); }

  // Waits for the other ranks. Where not all come, or NCCL fails, the communicators have failed; where these ranks
  // cannot have windows, they have not.
  Status Register(const Attendance& attendance, Clock::time_point deadline);
  // As this rank reaches it. Its own has a second address there, which is not memory().
  std::byte* Of(uint32_t rank) const { return peers_[rank]; }

  // An address by which multimem instructions reach the memory of all ranks at once. NCCL has the ranks meet for it and
  // knows no deadline there, so it is for those who have just registered.
  Result<std::byte*> Everywhere() const;

 private:
  // What NCCL is given.
  struct Given {
    const Library& nccl;
    void* memory = nullptr;
    WindowHandle window = nullptr;
    ~Given() {
      if (memory != nullptr) nccl.MemFree(memory);
    }
  };

  explicit Window(std::shared_ptr<Communicators> ranks)
      : ranks_(std::move(ranks)), given_(new Given{ranks_->library()}) {}

  const std::shared_ptr<Communicators> ranks_;
  const std::shared_ptr<Given> given_;
  size_t bytes_ = 0;
  std::vector<std::byte*> peers_;
};

}  // namespace jaxcomm::nccl
