// Memory for received messages. The pool keeps the memory between calls, because fresh pages cost more time than
// summing their contents.
//
//   ScratchPool pool(/*kept=*/2);
//   std::shared_ptr<std::byte> memory = pool.Take(bytes);   // uninitialized; its last owner returns it to the pool
//
// Thread-safe; taken memory may outlive the pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace jaxcomm {

class ScratchPool {
 public:
  explicit ScratchPool(size_t kept) : shelf_(std::make_shared<Shelf>()) { shelf_->kept = kept; }

  std::shared_ptr<std::byte> Take(int64_t bytes) {
    Block block{nullptr, bytes};
    {
      std::lock_guard<std::mutex> lock(shelf_->mutex);
      auto& blocks = shelf_->blocks;
      for (size_t i = 0; i < blocks.size() && !block.memory; ++i) {
        if (blocks[i].bytes < bytes) continue;
        std::swap(blocks[i], blocks.back());
        block = std::move(blocks.back());
        blocks.pop_back();
      }
    }
    if (!block.memory)
      block.memory.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAligned)));
    std::byte* const memory = block.memory.release();
    return std::shared_ptr<std::byte>(memory, [shelf = shelf_, bytes = block.bytes](std::byte* back) {
      Block block{std::unique_ptr<std::byte, Free>(back), bytes};
      std::lock_guard<std::mutex> lock(shelf->mutex);
      auto& blocks = shelf->blocks;
      if (blocks.size() < shelf->kept) return blocks.push_back(std::move(block));
      const auto least = std::min_element(blocks.begin(), blocks.end(),
                                          [](const Block& one, const Block& other) { return one.bytes < other.bytes; });
      if (least != blocks.end() && least->bytes < bytes) std::swap(*least, block);
    });
  }

 private:
  static constexpr std::align_val_t kAligned{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAligned); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    int64_t bytes;
  };
  struct Shelf {
    std::mutex mutex;
    size_t kept;
    std::vector<Block> blocks;
  };

  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace jaxcomm
