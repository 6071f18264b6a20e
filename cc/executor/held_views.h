// How many of a transport's views are held because the sum that reads them waits for something else. Each keeps its
// sender waiting, so there are few for each process.
//
//   std::shared_ptr<const std::byte> held = held_views->Hold(process, view);   // none: there are enough; copy it
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace jaxcomm {

class HeldViews : public std::enable_shared_from_this<HeldViews> {
 public:
  static constexpr int kMost = 8;  // of a process

  std::shared_ptr<const std::byte> Hold(uint32_t process, const std::shared_ptr<const std::byte>& view) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      int& count = counts_[process];
      if (count == kMost) return nullptr;
      ++count;
    }
    const std::byte* const bytes = view.get();
    return std::shared_ptr<const std::byte>(bytes, [self = shared_from_this(), process, view](const std::byte*) {
      std::lock_guard<std::mutex> lock(self->mutex_);
      --self->counts_[process];
    });
  }

 private:
  std::mutex mutex_;
  std::map<uint32_t, int> counts_;
};

}  // namespace jaxcomm
