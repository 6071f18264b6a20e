// The groups that devices of this process have joined, and the messages by which they run schedules.
//
//   Result<MessageCall> call = FindCall(device, "data", /*iteration=*/-1, "3f9a01c2…");
//
// Both come from Python, through exported functions of their own. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "cc/messages/messages.h"
#include "cc/nccl/board.h"
#include "cc/nccl/communicators.h"

namespace jaxcomm {

// One device's part in a group of ranks.
struct Part {
  std::unique_ptr<nccl::Communicators> communicators;
  std::unique_ptr<nccl::Board> board;  // null: no rank can be named
  double deadline_s;
  std::mutex issue;  // calls are issued one after the other, in the order in which XLA runs them
  uint64_t calls = 0;
};

// What a call needs of what was registered and joined before.
struct MessageCall {
  std::shared_ptr<Part> part;
  nccl::Comm comm;
  std::shared_ptr<const Messages> messages;
};

// `iteration` is that of the period of groups whose turn it is; below 0: the call is of all ranks.
Result<MessageCall> FindCall(int device, std::string_view group, int64_t iteration, std::string_view messages);

}  // namespace jaxcomm
