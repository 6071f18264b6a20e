#include "cc/executor/message_memory.h"

#include <utility>

#include "cc/base/float_mode.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

MessageMemory::MessageMemory(const MessageSite& site, const MessageGraph& graph, Buffers buffers)
    : site_(site),
      graph_(graph),
      buffers_(std::move(buffers)),
      scratch_(graph.scratch_bytes() > 0 ? site.scratch().Take(graph.scratch_bytes()) : nullptr),
      views_(graph.slots().size()) {}

// Bytes at `offset` of a leaf, which are at `at` in their segment.
const std::byte* MessageMemory::Read(const MessageTask& task, Memory memory, size_t leaf, int64_t offset,
                                     int64_t at) const {
  const int64_t slice = task.chunk * site_.layout().leaves()[leaf].bytes;
  switch (memory.where) {
    case Memory::Where::kOperand:
      return buffers_.operands[leaf] + offset + (site_.kind() == Kind::kReduceScatter ? slice : 0);
    case Memory::Where::kResult:
      return buffers_.results[leaf] + offset + (site_.kind() == Kind::kAllGather ? slice : 0);
    case Memory::Where::kScratch:
      break;
  }
  return views_[memory.slot] ? views_[memory.slot].get() + at : scratch_.get() + graph_.slots()[memory.slot] + at;
}

std::byte* MessageMemory::Store(const MessageTask& task, size_t leaf, int64_t offset, int64_t at) const {
  if (task.memory.where == Memory::Where::kScratch) return scratch_.get() + graph_.slots()[task.memory.slot] + at;
  const int64_t slice = task.chunk * site_.layout().leaves()[leaf].bytes;
  return buffers_.results[leaf] + offset + (site_.kind() == Kind::kAllGather ? slice : 0);
}

// Calls visit(leaf, offset in the leaf, offset in the segment, bytes) for every part of a leaf in the task's segment.
template <typename Visit>
void ForEachPart(const Layout& layout, const MessageTask& task, Visit visit) {
  layout.ForEach(task.begin, task.end, [&](size_t leaf, int64_t offset, int64_t bytes) {
    visit(leaf, offset, layout.Start(leaf) + offset - task.begin, bytes);
  });
}

std::vector<Span> MessageMemory::Spans(const MessageTask& task) const {
  std::vector<Span> spans;
  ForEachPart(site_.layout(), task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    spans.push_back({Store(task, leaf, offset, at), bytes, at});
  });
  return spans;
}

std::vector<ConstSpan> MessageMemory::ConstSpans(const MessageTask& task) const {
  std::vector<ConstSpan> spans;
  ForEachPart(site_.layout(), task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    spans.push_back({Read(task, task.memory, leaf, offset, at), bytes, at});
  });
  return spans;
}

void MessageMemory::Keep(const MessageTask& task, std::shared_ptr<const std::byte> view) {
  views_[task.memory.slot] = std::move(view);
}

void MessageMemory::Copy(const MessageTask& task, const std::byte* view) const {
  for (const Span& span : Spans(task)) CopyBytes(span.data, view + span.at, span.bytes);
}

void MessageMemory::Add(const MessageTask& task) {
  const XlaFloatMode mode;  // a sum's bits do not depend on the thread that a message came on
  thread_local std::vector<const std::byte*> sources;
  sources.resize(task.operands.size());
  // One source is copied byte by byte: a float lane would quieten its signalling NaNs.
  static const ReduceFn copy = FindReduce(DType::kU8, Reduction::kSum);
  ForEachPart(site_.layout(), task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    for (size_t i = 0; i < sources.size(); ++i) sources[i] = Read(task, task.operands[i], leaf, offset, at);
    std::byte* const destination = Store(task, leaf, offset, at);
    const ReduceFn reduce = sources.size() == 1 ? copy : site_.reduces()[leaf];
    reduce(sources.data(), sources.size(), &destination, 1, 1, static_cast<size_t>(bytes));
  });
  for (const Memory& operand : task.operands) {
    // Others may read what is no view at the same time.
    if (operand.where == Memory::Where::kScratch && views_[operand.slot]) views_[operand.slot].reset();
  }
}

}  // namespace jaxcomm
