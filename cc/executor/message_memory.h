// Where the bytes of one rank of a call lie: in its buffers, in scratch memory, or still in the transport's.
//
//   MessageMemory memory(site, graph, buffers);
//   transport.Post(…, memory.Spans(task), memory.AcceptsView(task), …);   // then, of what came as a view:
//   memory.Keep(task, view);                                       // read from there, or
//   memory.Copy(task, view);                                       // no longer needed, as if it had come that way
//   memory.Copy(task, memory.Take(task).get());                    // or later
//   memory.Lose(task, lost);                                       // the bytes that are missing
//   memory.Add(task);                                              // releases the views that it reads
//
// Not thread-safe by itself: of two tasks of which one waits for the other, the first must have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/executor/buffers.h"
#include "cc/executor/message_graph.h"
#include "cc/executor/message_site.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class MessageMemory {
 public:
  MessageMemory(const MessageSite& site, const MessageGraph& graph, Buffers buffers);

  std::vector<Span> Spans(const MessageTask& task) const;
  std::vector<ConstSpan> ConstSpans(const MessageTask& task) const;

  // Of a lossy task: spans that are important or not, which of them are, and how many bytes of the others may be lost.
  std::vector<bool> Important(const MessageTask& task) const;
  int64_t MayLose(const MessageTask& task) const;
  // Missing parts are zeros already; Add makes up for them.
  void Lose(const MessageTask& task, const std::vector<ByteRange>& lost);
  int64_t lost_bytes() const { return lost_bytes_; }

  // Whether a transport may leave what is received in memory of its own.
  bool AcceptsView(const MessageTask& task) const { return task.accepts_view || Streams(task); }
  void Keep(const MessageTask& task, std::shared_ptr<const std::byte> view);
  std::shared_ptr<const std::byte> Take(const MessageTask& task) { return std::move(views_[task.memory.slot]); }
  void Copy(const MessageTask& task, const std::byte* view) const;
  void Add(const MessageTask& task);

 private:
  // Whether what the task stores goes past the caches.
  bool Streams(const MessageTask& task) const { return site_.streams() && task.waiting.empty(); }
  const std::byte* Read(const MessageTask& task, Memory memory, size_t leaf, int64_t offset, int64_t at) const;
  void MakeUp(const MessageTask& task, size_t leaf, std::byte* sums, int64_t at) const;
  std::byte* Store(const MessageTask& task, size_t leaf, int64_t offset, int64_t at) const;

  const MessageSite& site_;
  const MessageGraph& graph_;
  const Buffers buffers_;
  const std::shared_ptr<std::byte> scratch_;
  std::vector<std::shared_ptr<const std::byte>> views_;  // by slot
  std::vector<std::vector<ByteRange>> lost_;             // by slot, of the segment that it holds
  int64_t lost_bytes_ = 0;
};

}  // namespace jaxcomm
