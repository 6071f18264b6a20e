// A message in flight to one or several simulated processes. The message holds a copy of the bytes, or refers to the
// sender's spans.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/simulated/readers.h"
#include "cc/transport/spans.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct SimulatedMessage {
  CallId call;
  std::vector<ConstSpan> spans;
  Sent done;
  std::atomic<size_t> left;  // number of receivers that do not have the message yet
  Readers* readers;          // the processes that read the sender's memory
  bool is_copied;
  std::atomic<bool> has_ended{false};
  std::shared_ptr<std::byte> bytes;  // the copy; byte i of the message is at bytes.get() + i

  SimulatedMessage(const CallId& call, std::vector<ConstSpan> spans, Sent done, size_t receivers, Readers* readers,
                   bool is_copied)
      : call(call),
        spans(std::move(spans)),
        done(std::move(done)),
        left(receivers),
        readers(readers),
        is_copied(is_copied) {
    if (is_copied) bytes = Copy();
  }

  std::shared_ptr<std::byte> Copy() const {
    const int64_t size = spans.empty() ? 0 : spans.back().at + spans.back().bytes;
    std::shared_ptr<std::byte> copy(new std::byte[static_cast<size_t>(std::max<int64_t>(size, 1))],
                                    std::default_delete<std::byte[]>());
    Gather(spans, 0, copy.get());
    return copy;
  }

  // Leave: called when `receivers` more receivers have the message. Lose: called when `receiver` will never get the
  // message. Either function may run `done`, unless the message is copied. For a copied message, Send runs `done`.
  void Leave(size_t receivers) {
    if ((left -= receivers) == 0) End(Status());
  }
  void Lose(uint32_t receiver) {
    if (!is_copied) End(Status(Code::kInternal, "process " + std::to_string(receiver) + " ended"));
  }

 private:
  void End(const Status& status) {
    if (!has_ended.exchange(true) && !readers->IsCancelled(call)) done(status);
  }
};

}  // namespace jaxcomm
