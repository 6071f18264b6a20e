// The sends, receives and additions of one rank of a call, as a graph of tasks. Each task handles a segment of a chunk.
//
//   Result<MessageGraph> graph = MessageGraph::Make(messages, layout, Kind::kAllReduce, {});
//   for (const MessageTask& task : graph.value().tasks()) ...
//
// A task may start when the tasks that it waits for are done. The rounds of the schedule only define these
// dependencies, so a rank may forward some segments of a chunk while other segments are still in flight. Each chunk
// received for an addition has memory of its own, so no task waits for free memory. A receive that overwrites memory
// waits for the earlier tasks that read this memory. Immutable; may be shared.
//
// In a lossy all-reduce, a message may lose bytes only if a rank sends its own bytes to the rank that adds them. Each
// chunk is added by one rank for all ranks, so all ranks get the same result. Messages of a lossy all-reduce never span
// two leaves. If losses are reported, the adding rank tells each sender of a lossy message which of the message's whole
// segments were lost.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/kind.h"
#include "cc/executor/calls/layout.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// The place of a segment of a chunk. In an in-place all-reduce, operand and result are the same memory.
struct Memory {
  // kReport: the report on a lossy message, with one byte per whole segment: whether the segment was lost. For the send
  // of a report, `slot` is the slot of the lossy message.
  enum class Where : uint8_t { kOperand, kResult, kScratch, kReport };
  Where where = Where::kResult;
  uint32_t slot = 0;  // only for kScratch and kReport

  bool operator==(const Memory& other) const { return where == other.where && slot == other.slot; }
};

struct MessageTask {
  enum class Kind : uint8_t { kReceive, kSend, kAdd };
  struct Peer {
    uint32_t rank;
    uint32_t index;  // the message's place among all messages from the sender to the receiver
  };

  Kind kind;
  bool accepts_view = false;  // whether the received bytes are read only once, by an addition
  bool is_lossy = false;
  uint32_t chunk;
  uint32_t segment;
  int64_t begin, end;             // the task's range of bytes in the layout
  Memory memory;                  // a send reads this memory; a receive or an addition stores to it
  std::vector<Peer> peers;        // one or more for a send, one for a receive, none for an addition
  std::vector<Memory> operands;   // the operands of an addition, in order; a single operand is copied
  std::vector<uint32_t> waiting;  // tasks that wait for this task
  uint32_t num_waits = 0;
};

class MessageGraph {
 public:
  struct Options {
    bool is_lossy = false;
    int64_t reported_segment_bytes = 0;  // the size of the segments whose loss is reported; 0: there are no reports
    bool is_between_hosts = false;
    bool is_in_place = true;
  };

  // Fails if the list uses chunks that the rank has not received, or does not produce the collective's result. A lossy
  // graph also fails if a chunk r is added by a rank other than r.
  static Result<MessageGraph> Make(const Messages& messages, const Layout& layout, Kind kind, const Options& options);

  const std::vector<MessageTask>& tasks() const { return tasks_; }
  // The offset of each slot in the scratch memory, then the size of the scratch memory.
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
