// Finds where the bytes of one rank of a call lie: in the rank's buffers, in scratch memory, or still in transport
// memory.
//
//   MessageMemory memory(site, graph, buffers);
//   transport.Post(…, memory.Spans(task), memory.AcceptsView(task), …);   // then, for a message received as a view:
//   memory.Keep(task, view);                       // either keeps the view, from which additions read the bytes,
//   memory.Copy(task, view);                       // or copies its bytes, as if they were received without a view
//   memory.Copy(task, memory.Take(task).get());    // copies the bytes of a view that was kept
//   memory.Lose(task, lost);                       // records the bytes that a lossy message lost
//   memory.Add(task);                              // adds, then releases the views that were added
//
// Not thread-safe by itself: the caller starts a task only when the tasks that the task waits for have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/executor/calls/buffers.h"
#include "cc/executor/sites/message_graph.h"
#include "cc/executor/sites/message_site.h"
#include "cc/executor/sites/whole_segments.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class MessageMemory {
 public:
  MessageMemory(const MessageSite& site, const MessageGraph& graph, Buffers buffers);

  std::vector<Span> Spans(const MessageTask& task) const;
  std::vector<ConstSpan> ConstSpans(const MessageTask& task) const;

  // For lossy tasks. Important returns for each span whether the span is important. MayLose returns the number of bytes
  // that may be lost from the other spans.
  std::vector<bool> Important(const MessageTask& task) const;
  int64_t MayLose(const MessageTask& task) const;
  // Called when a lossy message has arrived. `lost`: the lost bytes, which the transport has set to zero. Add scales
  // the sums to make up for the lost bytes, unless losses are reported.
  void Lose(const MessageTask& task, const std::vector<ByteRange>& lost);
  int64_t lost_bytes() const { return lost_bytes_; }

  // Whether the transport may leave the received bytes in transport memory, and pass a view of these bytes.
  bool AcceptsView(const MessageTask& task) const { return task.accepts_view || Streams(task); }
  void Keep(const MessageTask& task, std::shared_ptr<const std::byte> view);
  std::shared_ptr<const std::byte> Take(const MessageTask& task) { return std::move(views_[task.memory.slot]); }
  void Copy(const MessageTask& task, const std::byte* view) const;
  void Add(const MessageTask& task);

 private:
  // Whether stores to the task's memory bypass the caches.
  bool Streams(const MessageTask& task) const { return site_.leaves().streams() && task.waiting.empty(); }
  const std::byte* Read(const MessageTask& task, Memory memory, size_t leaf, int64_t offset, int64_t at) const;
  void MakeUp(const MessageTask& task, size_t leaf, std::byte* sums, int64_t at) const;
  bool has_reports() const { return site_.collective().loss && site_.collective().loss->has_reports(); }
  WholeSegments Whole(const MessageTask& task) const;
  void ClearReports();
  std::byte* Store(const MessageTask& task, size_t leaf, int64_t offset, int64_t at) const;

  const MessageSite& site_;
  const MessageGraph& graph_;
  const Buffers buffers_;
  const std::shared_ptr<std::byte> scratch_;
  std::vector<std::shared_ptr<const std::byte>> views_;  // by slot
  std::vector<std::vector<ByteRange>> lost_;             // by slot: the lost bytes of the slot's segment
  std::vector<std::vector<std::byte>> reports_;          // by slot: the report of the slot's lossy message
  int64_t lost_bytes_ = 0;
};

}  // namespace jaxcomm
