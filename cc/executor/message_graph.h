// The sends, receives and additions of one rank of a call, as a graph of tasks on segments of its chunks.
//
//   Result<MessageGraph> graph = MessageGraph::Make(messages, layout, Kind::kAllReduce, /*is_lossy=*/false);
//   for (const MessageTask& task : graph.value().tasks()) ...
//
// A task may start when those that it waits for are done; the list of rounds says only who waits for whom, so segments
// of one chunk move on while others are still on their way. Every chunk that is received to be added has memory of its
// own, so nobody waits for a slot; one that goes to where earlier tasks read waits for these. Immutable; may be shared.
//
// In a lossy all-reduce the messages may lose some that bring a rank's own bytes to who adds them; as only one rank
// adds what all then get, all get the same. No message is then of two leaves.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/kind.h"
#include "cc/executor/layout.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// Where a segment of a chunk lies. Of an all-reduce in place, operand and result are the same.
struct Memory {
  enum class Where : uint8_t { kOperand, kResult, kScratch };
  Where where = Where::kResult;
  uint32_t slot = 0;  // of kScratch

  bool operator==(const Memory& other) const { return where == other.where && slot == other.slot; }
};

struct MessageTask {
  enum class Kind : uint8_t { kReceive, kSend, kAdd };
  struct Peer {
    uint32_t rank;
    uint32_t index;  // among the messages between the two
  };

  Kind kind;
  bool accepts_view = false;  // the received bytes are read once, by an addition
  bool is_lossy = false;
  uint32_t chunk;
  uint32_t segment;
  int64_t begin, end;             // bytes of the layout
  Memory memory;                  // that is sent, or stored to
  std::vector<Peer> peers;        // one of a receive
  std::vector<Memory> operands;   // of an addition, in its order; one is copied
  std::vector<uint32_t> waiting;  // tasks that wait for this one
  uint32_t num_waits = 0;
};

class MessageGraph {
 public:
  // An error: the list reads what it has not received, or does not leave what the kind of collective must; or it is to
  // lose some, and adds a chunk on another rank than that of its number.
  static Result<MessageGraph> Make(const Messages& messages, const Layout& layout, Kind kind, bool is_lossy = false,
                                   bool is_between_hosts = false, bool is_in_place = true);

  const std::vector<MessageTask>& tasks() const { return tasks_; }
  // Where each slot begins in the scratch memory, and behind the last one its size.
  const std::vector<int64_t>& slots() const { return slots_; }
  int64_t scratch_bytes() const { return slots_.back(); }
  int64_t work() const { return work_; }  // bytes that additions read and store

 private:
  friend class MessageGraphBuilder;

  std::vector<MessageTask> tasks_;
  std::vector<int64_t> slots_{0};
  int64_t work_ = 0;
};

}  // namespace jaxcomm
