// The work of one thread for calls between processes; only the files of MessageExecutor include it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "cc/executor/message_executor.h"

namespace jaxcomm {

// The steps that the running thread has yet to start, of any call. A callback only adds steps: the thread starts them
// when it has returned from the transport, so that the stack does not grow with the messages.
struct MessageExecutor::Driver {
  static thread_local Driver* current;

  std::deque<Work> work;
  // The completion of the rank that is arriving on this thread needs no other one.
  const MessageCall* call = nullptr;
  uint32_t rank = 0;
  std::optional<Completion> own;
  bool helps = false;  // its thread waits for what comes of it, and lets the transport flush

  // While it lives, the running thread's driver.
  class Current {
   public:
    explicit Current(Driver& driver) : outer_(std::exchange(current, &driver)) {}
    ~Current() { current = outer_; }
    Current(const Current&) = delete;

   private:
    Driver* const outer_;
  };
};

}  // namespace jaxcomm
