// Fibers that take turns on one thread. The running fiber switches to another fiber.
//
//   Fibers fibers(8);
//   fibers.Run([&](uint32_t fiber) { ... fibers.SwitchTo(3); ... });   // starts fiber 0; returns when Stop is called
//
// A fiber must never return from its body. Instead, one fiber calls Stop, which abandons all fibers without running
// destructors. So a fiber's body must not own anything.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace jaxcomm::fused {

class Fibers {
 public:
  explicit Fibers(uint32_t count) : fibers_(count) {
    for (Fiber& fiber : fibers_) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
  }
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  void Run(std::function<void(uint32_t)> body) {
    body_ = std::move(body);
    for (uint32_t i = 0; i < fibers_.size(); ++i) {
      ucontext_t& context = fibers_[i].context;
      getcontext(&context);
      context.uc_stack.ss_sp = fibers_[i].stack.get();
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = nullptr;
      const auto self = reinterpret_cast<uintptr_t>(this);
      makecontext(&context, reinterpret_cast<void (*)()>(Enter), 3, static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(self), i);
    }
    current_ = 0;
    swapcontext(&caller_, &fibers_[0].context);
  }

  void SwitchTo(uint32_t fiber) {
    if (fiber == current_) return;
    ucontext_t& from = fibers_[std::exchange(current_, fiber)].context;
    swapcontext(&from, &fibers_[fiber].context);
  }

  void Stop() { swapcontext(&fibers_[current_].context, &caller_); }

  uint32_t current() const { return current_; }

 private:
  static constexpr size_t kStackBytes = 64 << 10;

  struct Fiber {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
  };

  static void Enter(unsigned high, unsigned low, unsigned fiber) {
    auto* self = reinterpret_cast<Fibers*>(static_cast<uintptr_t>(high) << 32 | low);
    self->body_(fiber);
  }

  std::vector<Fiber> fibers_;
  std::function<void(uint32_t)> body_;
  ucontext_t caller_;
  uint32_t current_ = 0;
};

}  // namespace jaxcomm::fused
