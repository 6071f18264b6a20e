#include "cc/executor/messages/message_memory.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "cc/base/float_mode.h"

namespace jaxcomm {
namespace {

// Returns the kernel that copies one source as bytes. Copying floats would turn signalling NaNs into quiet NaNs.
ReduceFn CopyFn() {
  static const ReduceFn copy = FindReduce(DType::kU8, Reduction::kSum);
  return copy;
}

}  // namespace

MessageMemory::MessageMemory(const MessageSite& site, const MessageGraph& graph, Buffers buffers)
    : site_(site),
      graph_(graph),
      buffers_(std::move(buffers)),
      scratch_(graph.scratch_bytes() > 0 ? site.scratch().Take(graph.scratch_bytes()) : nullptr),
      views_(graph.slots().size()),
      lost_(site.collective().loss ? graph.slots().size() : 0),
      reports_(has_reports() ? graph.slots().size() : 0) {
  if (has_reports()) ClearReports();
}

// Clears the reports of the segments that cannot be lost. The reports may share memory with the importance mask, which
// is not read for these segments.
void MessageMemory::ClearReports() {
  const std::vector<Leaf>& leaves = site_.layout().leaves();
  std::vector<bool> reported(static_cast<size_t>(site_.leaves().FirstSegment(leaves.size() - 1) +
                                                 site_.collective().loss->SegmentsOf(leaves.back())));
  for (const MessageTask& task : graph_.tasks()) {
    if (task.memory.where != Memory::Where::kReport || task.kind != MessageTask::Kind::kReceive) continue;
    const WholeSegments whole = Whole(task);
    const auto first = reported.begin() + site_.leaves().FirstSegment(whole.leaf) + whole.first;
    std::fill(first, first + whole.count, true);
  }
  for (size_t segment = 0; segment < reported.size(); ++segment) {
    if (!reported[segment]) buffers_.leading_result[segment] = std::byte{0};
  }
}

// Returns the whole segments in a lossy message, or in the message to which a report belongs.
WholeSegments MessageMemory::Whole(const MessageTask& task) const {
  return FindWholeSegments(site_.layout(), task.begin, task.end, site_.collective().loss->segment_bytes);
}

// Returns a pointer to the bytes that a task reads. The bytes are at `offset` in their leaf, and at `at` in their
// segment.
const std::byte* MessageMemory::Read(const MessageTask& task, Memory memory, size_t leaf, int64_t offset,
                                     int64_t at) const {
  const int64_t slice = task.chunk * site_.layout().leaves()[leaf].bytes;
  switch (memory.where) {
    case Memory::Where::kOperand:
      return buffers_.operands[leaf] + offset + (site_.collective().kind == Kind::kReduceScatter ? slice : 0);
    case Memory::Where::kResult:
      return buffers_.results[leaf] + offset + (site_.collective().kind == Kind::kAllGather ? slice : 0);
    case Memory::Where::kScratch:
    case Memory::Where::kReport:  // no addition reads a report
      break;
  }
  return views_[memory.slot] ? views_[memory.slot].get() + at : scratch_.get() + graph_.slots()[memory.slot] + at;
}

std::byte* MessageMemory::Store(const MessageTask& task, size_t leaf, int64_t offset, int64_t at) const {
  if (task.memory.where == Memory::Where::kScratch) return scratch_.get() + graph_.slots()[task.memory.slot] + at;
  const int64_t slice = task.chunk * site_.layout().leaves()[leaf].bytes;
  return buffers_.results[leaf] + offset + (site_.collective().kind == Kind::kAllGather ? slice : 0);
}

// Calls visit(leaf, offset in the leaf, offset in the segment, bytes) for every part of a leaf in the task's segment.
template <typename Visit>
void ForEachPart(const Layout& layout, const MessageTask& task, Visit visit) {
  layout.ForEach(task.begin, task.end, [&](size_t leaf, int64_t offset, int64_t bytes) {
    visit(leaf, offset, layout.Start(leaf) + offset - task.begin, bytes);
  });
}

// Like ForEachPart, but also cuts the parts of a lossy task where the leaf's lossy segments begin.
template <typename Visit>
void ForEachSpan(const MessageSite& site, const MessageTask& task, Visit visit) {
  ForEachPart(site.layout(), task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    while (bytes > 0) {
      const int64_t left = task.is_lossy
                               ? site.collective().loss->segment_bytes - offset % site.collective().loss->segment_bytes
                               : bytes;
      const int64_t size = std::min(bytes, left);
      visit(leaf, offset, at, size);
      offset += size;
      at += size;
      bytes -= size;
    }
  });
}

std::vector<Span> MessageMemory::Spans(const MessageTask& task) const {
  if (task.memory.where == Memory::Where::kReport) {
    const WholeSegments whole = Whole(task);
    return {{buffers_.leading_result + site_.leaves().FirstSegment(whole.leaf) + whole.first, whole.count, 0}};
  }
  std::vector<Span> spans;
  ForEachSpan(site_, task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    spans.push_back({Store(task, leaf, offset, at), bytes, at});
  });
  return spans;
}

std::vector<ConstSpan> MessageMemory::ConstSpans(const MessageTask& task) const {
  if (task.memory.where == Memory::Where::kReport) {
    const std::vector<std::byte>& report = reports_[task.memory.slot];
    return {{report.data(), static_cast<int64_t>(report.size()), 0}};
  }
  std::vector<ConstSpan> spans;
  ForEachSpan(site_, task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    spans.push_back({Read(task, task.memory, leaf, offset, at), bytes, at});
  });
  return spans;
}

std::vector<bool> MessageMemory::Important(const MessageTask& task) const {
  std::vector<bool> important;
  // If losses are reported, a segment that is only partly in the message must arrive, because two ranks may add its
  // parts.
  const WholeSegments whole = has_reports() ? Whole(task) : WholeSegments{0, 0, INT64_MAX};
  ForEachSpan(site_, task, [&](size_t leaf, int64_t offset, int64_t, int64_t) {
    const int64_t segment = offset / site_.collective().loss->segment_bytes;
    const bool is_whole = segment >= whole.first && segment - whole.first < whole.count;
    important.push_back(!is_whole || buffers_.leading[site_.leaves().FirstSegment(leaf) + segment] != std::byte{0});
  });
  return important;
}

int64_t MessageMemory::MayLose(const MessageTask& task) const {
  int64_t may_lose = 0;
  ForEachPart(site_.layout(), task, [&](size_t leaf, int64_t, int64_t, int64_t bytes) {
    may_lose += static_cast<int64_t>(site_.collective().loss->shares[leaf] * static_cast<double>(bytes));
  });
  return may_lose;
}

void MessageMemory::Lose(const MessageTask& task, const std::vector<ByteRange>& lost) {
  for (const ByteRange& range : lost) lost_bytes_ += range.end - range.begin;
  lost_[task.memory.slot] = lost;
  if (!has_reports()) return;
  const WholeSegments whole = Whole(task);
  std::vector<std::byte>& report = reports_[task.memory.slot];
  report.assign(static_cast<size_t>(whole.count), std::byte{0});
  for (const ByteRange& range : lost) {
    const int64_t offset = task.begin + range.begin - site_.layout().Start(whole.leaf);
    const int64_t segment = offset / site_.collective().loss->segment_bytes - whole.first;
    // A sender that follows the protocol marks a segment that is only partly in the message as important, so such a
    // segment is never lost.
    if (segment >= 0 && segment < whole.count) report[static_cast<size_t>(segment)] = std::byte{1};
  }
}

// Multiplies each sum by the number of its operands divided by the number of operands that arrived. A rank's own bytes
// always count as arrived.
void MessageMemory::MakeUp(const MessageTask& task, size_t leaf, std::byte* sums, int64_t at) const {
  std::map<int64_t, int> changes;  // by offset in the segment: the change in the number of missing operands
  for (const Memory& operand : task.operands) {
    if (operand.where != Memory::Where::kScratch) continue;
    for (const ByteRange& range : lost_[operand.slot]) {
      ++changes[range.begin];
      --changes[range.end];
    }
  }
  const auto width = static_cast<int64_t>(ByteWidth(site_.layout().leaves()[leaf].dtype));
  const auto count = static_cast<float>(task.operands.size());
  int missing = 0;
  for (auto change = changes.begin(); change != changes.end(); ++change) {
    missing += change->second;
    if (missing == 0) continue;
    const int64_t elements = (std::next(change)->first - change->first) / width;
    site_.leaves().scale(leaf)(sums + (change->first - at), static_cast<size_t>(elements),
                               count / (count - static_cast<float>(missing)));
  }
}

void MessageMemory::Keep(const MessageTask& task, std::shared_ptr<const std::byte> view) {
  views_[task.memory.slot] = std::move(view);
}

void MessageMemory::Copy(const MessageTask& task, const std::byte* view) const {
  for (const Span& span : Spans(task)) {
    const std::byte* const source = view + span.at;
    CopyFn()(&source, 1, &span.data, 1, Streams(task) ? 0 : 1, static_cast<size_t>(span.bytes));
  }
}

void MessageMemory::Add(const MessageTask& task) {
  const XlaFloatMode mode;  // so that a sum's bits do not depend on the receiving thread
  thread_local std::vector<const std::byte*> sources;
  sources.resize(task.operands.size());
  ForEachPart(site_.layout(), task, [&](size_t leaf, int64_t offset, int64_t at, int64_t bytes) {
    for (size_t i = 0; i < sources.size(); ++i) sources[i] = Read(task, task.operands[i], leaf, offset, at);
    std::byte* const destination = Store(task, leaf, offset, at);
    const ReduceFn reduce = sources.size() == 1 ? CopyFn() : site_.leaves().reduces()[leaf];
    reduce(sources.data(), sources.size(), &destination, 1, Streams(task) ? 0 : 1, static_cast<size_t>(bytes));
    if (site_.collective().loss && !has_reports()) MakeUp(task, leaf, destination, at);
  });
  for (const Memory& operand : task.operands) {
    // Resets only slots that have a view, because other tasks may be reading the other slots.
    if (operand.where == Memory::Where::kScratch && views_[operand.slot]) views_[operand.slot].reset();
  }
}

}  // namespace jaxcomm
