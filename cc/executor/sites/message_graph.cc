#include "cc/executor/sites/message_graph.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "cc/executor/sites/segment_bytes.h"
#include "cc/executor/sites/whole_segments.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

static_assert(kSegmentBytes <= Transport::kMaxMessage);

// Walks through the rounds and tracks where each chunk's bytes are after each round. An operation on a chunk is one
// task per segment. The tasks of an operation have consecutive numbers. The functions below take and return the number
// of the first task.
class MessageGraphBuilder {
 public:
  MessageGraphBuilder(const Messages& messages, const Layout& layout, Kind kind, const MessageGraph::Options& options)
      : messages_(messages),
        layout_(layout),
        kind_(kind),
        is_lossy_(options.is_lossy),
        is_between_hosts_(options.is_between_hosts),
        is_in_place_(options.is_in_place && kind == Kind::kAllReduce),
        reported_bytes_(options.reported_segment_bytes) {}

  Result<MessageGraph> Build() {
    if (kind_ != Kind::kAllReduce && messages_.chunks() != messages_.ranks()) {
      return InvalidArgument("messages of " + std::to_string(messages_.chunks()) + " chunks for " +
                             std::to_string(messages_.ranks()) + " ranks: each chunk must be a rank's slice");
    }
    for (const Round& round : messages_.rounds()) {
      AddSends(round);
      for (const ReceiveChunk& receive : round.receives) AddReceive(receive);
      for (const Sum& sum : round.sums) AddSum(sum);
    }
    if (reported_bytes_ > 0) AddReports();
    const bool whole = kind_ != Kind::kReduceScatter && !is_in_place_;
    for (uint32_t chunk = 0; whole && chunk < messages_.chunks(); ++chunk) StoreResult(chunk);
    if (kind_ == Kind::kReduceScatter) StoreResult(messages_.rank());
    if (!status_.ok()) return status_;
    return std::move(graph_);
  }

 private:
  // The rank's own bytes of a chunk.
  struct Own {
    std::vector<Memory> memory;      // by segment
    std::optional<uint32_t> writer;  // the task that stored the bytes; nullopt if the bytes are the operand's
    std::vector<uint32_t> readers;   // tasks that have read the bytes since the writer stored them
  };
  struct Received {
    uint32_t chunk;
    uint32_t task;
    uint32_t uses = 0;
  };
  struct Lossy {
    uint32_t peer, chunk;
    uint32_t task = 0;  // the first task, for a receive
  };

  int64_t Begin(uint32_t chunk) const {
    return kind_ == Kind::kAllReduce ? layout_.Bound(chunk, messages_.chunks()) : 0;
  }
  int64_t End(uint32_t chunk) const {
    return kind_ == Kind::kAllReduce ? layout_.Bound(chunk + 1, messages_.chunks()) : layout_.extent();
  }
  int64_t SegmentBytes(int64_t chunk_bytes) const {
    const int64_t half = (chunk_bytes + 2 * Layout::kAlignment - 1) / (2 * Layout::kAlignment) * Layout::kAlignment;
    const bool halves = is_between_hosts_ && !is_lossy_ && half >= kShortestSegment;
    return halves ? std::min(half, kLongestBetweenHosts) : kSegmentBytes;
  }
  // Returns the offsets where the chunk's segments begin, then the chunk's end.
  const std::vector<int64_t>& Bounds(uint32_t chunk) {
    const auto [at, is_new] = bounds_.try_emplace(chunk);
    if (!is_new) return at->second;
    std::vector<int64_t>& bounds = at->second;
    const std::vector<int64_t> starts = is_lossy_ ? layout_.StartsIn(Begin(chunk), End(chunk)) : std::vector<int64_t>();
    const int64_t segment = SegmentBytes(End(chunk) - Begin(chunk));
    auto start = starts.begin();
    for (int64_t next = Begin(chunk); next < End(chunk);) {
      bounds.push_back(next);
      next = std::min(next + segment, End(chunk));
      while (start != starts.end() && *start <= bounds.back()) ++start;
      if (start != starts.end()) next = std::min(next, *start);
    }
    bounds.push_back(End(chunk));
    return bounds;
  }
  uint32_t Segments(uint32_t chunk) { return static_cast<uint32_t>(Bounds(chunk).size() - 1); }

  void Fail(const std::string& message) {
    if (status_.ok())
      status_ = InvalidArgument("messages of rank " + std::to_string(messages_.rank()) + ": " + message);
  }

  void FailAsLossy(uint32_t chunk) {
    Fail("chunk " + std::to_string(chunk) + " is not added by rank " + std::to_string(chunk) +
         ", as a lossy all-reduce requires");
  }

  Own& OwnOf(uint32_t chunk) {
    const auto [at, is_new] = own_.try_emplace(chunk);
    if (is_new) at->second.memory.assign(Segments(chunk), {Memory::Where::kOperand});
    if (is_new && is_in_place_) at->second.memory = Home(chunk);
    return at->second;
  }

  // Whether the rank has bytes of the chunk. In an all-gather, the rank begins with only its own slice.
  bool Has(uint32_t chunk) {
    return kind_ != Kind::kAllGather || chunk == messages_.rank() || OwnOf(chunk).writer.has_value();
  }

  // Returns where the rank stores its own bytes of a chunk.
  const std::vector<Memory>& Home(uint32_t chunk) {
    const auto [at, is_new] = homes_.try_emplace(chunk);
    if (is_new && kind_ == Kind::kReduceScatter && chunk != messages_.rank()) {
      at->second = NewSlots(chunk);
    } else if (is_new) {
      at->second.assign(Segments(chunk), {Memory::Where::kResult});
    }
    return at->second;
  }

  std::vector<Memory> NewSlots(uint32_t chunk) {
    std::vector<Memory> slots;
    const std::vector<int64_t>& bounds = Bounds(chunk);
    for (size_t segment = 0; segment + 1 < bounds.size(); ++segment) {
      slots.push_back({Memory::Where::kScratch, static_cast<uint32_t>(graph_.slots_.size() - 1)});
      graph_.slots_.push_back(graph_.slots_.back() + bounds[segment + 1] - bounds[segment]);
    }
    return slots;
  }

  // Adds a task for each segment. Returns the first task's number.
  uint32_t NewTasks(MessageTask::Kind kind, uint32_t chunk, const std::vector<Memory>& memory) {
    const auto first = static_cast<uint32_t>(graph_.tasks_.size());
    for (uint32_t segment = 0; segment < Segments(chunk); ++segment) {
      MessageTask task{};
      task.kind = kind;
      task.chunk = chunk;
      task.segment = segment;
      task.begin = Bounds(chunk)[segment];
      task.end = Bounds(chunk)[segment + 1];
      task.memory = memory[segment];
      graph_.tasks_.push_back(std::move(task));
    }
    return first;
  }

  template <typename Change>
  void ForEachTask(uint32_t first, uint32_t chunk, Change change) {
    for (uint32_t segment = 0; segment < Segments(chunk); ++segment) change(graph_.tasks_[first + segment], segment);
  }

  void Wait(uint32_t task, uint32_t before, uint32_t chunk) {
    ForEachTask(before, chunk, [&](MessageTask& each, uint32_t segment) { each.waiting.push_back(task + segment); });
    ForEachTask(task, chunk, [](MessageTask& each, uint32_t) { ++each.num_waits; });
  }

  void Read(uint32_t task, uint32_t chunk) {
    Own& own = OwnOf(chunk);
    if (own.writer) Wait(task, *own.writer, chunk);
    own.readers.push_back(task);
  }

  // Records that the task stores the rank's own bytes of a chunk. Makes the task wait for the tasks that read or stored
  // these bytes before.
  void Write(uint32_t task, uint32_t chunk) {
    Own& own = OwnOf(chunk);
    if (own.memory == Home(chunk)) {
      for (const uint32_t reader : own.readers) {
        if (reader != task) Wait(task, reader, chunk);
      }
      if (own.writer && own.readers.empty()) Wait(task, *own.writer, chunk);
    }
    own.memory = Home(chunk);
    own.writer = task;
    own.readers.clear();
  }

  void AddSends(const Round& round) {
    std::map<uint32_t, uint32_t> tasks;  // by chunk: the first task of the send to all receivers
    for (const SendChunk& send : round.sends) {
      if (!Has(send.chunk)) return Fail("chunk " + std::to_string(send.chunk) + " is sent before it is received");
      const bool is_lossy = is_lossy_ && !OwnOf(send.chunk).writer;
      if (is_lossy && send.chunk != send.peer) return FailAsLossy(send.chunk);
      const auto [at, is_new] = tasks.try_emplace(send.chunk);
      if (is_new) {
        at->second = NewTasks(MessageTask::Kind::kSend, send.chunk, OwnOf(send.chunk).memory);
        ForEachTask(at->second, send.chunk, [&](MessageTask& task, uint32_t) { task.is_lossy = is_lossy; });
        Read(at->second, send.chunk);
      }
      if (is_lossy) lossy_sends_.push_back({send.peer, send.chunk});
      const MessageTask::Peer peer{send.peer, sent_[send.peer]++};
      ForEachTask(at->second, send.chunk, [&](MessageTask& task, uint32_t) { task.peers.push_back(peer); });
    }
  }

  void AddReceive(const ReceiveChunk& receive) {
    const bool own = receive.place == Messages::kOwn, is_lossy = is_lossy_ && !own;
    const std::vector<Memory> memory = own ? Home(receive.chunk) : NewSlots(receive.chunk);
    const uint32_t task = NewTasks(MessageTask::Kind::kReceive, receive.chunk, memory);
    const MessageTask::Peer peer{receive.peer, received_[receive.peer]++};
    ForEachTask(task, receive.chunk, [&](MessageTask& each, uint32_t) {
      each.peers.push_back(peer);
      each.is_lossy = is_lossy;
    });
    if (is_lossy) lossy_receives_.push_back({receive.peer, receive.chunk, task});
    if (own) {
      Write(task, receive.chunk);
    } else {
      slots_[receive.place] = {receive.chunk, task};
    }
  }

  void AddSum(const Sum& sum) {
    if (is_lossy_ && sum.chunk != messages_.rank()) return FailAsLossy(sum.chunk);
    const bool reads_own = std::find(sum.places.begin(), sum.places.end(), Messages::kOwn) != sum.places.end();
    if (reads_own && !Has(sum.chunk)) {
      return Fail("chunk " + std::to_string(sum.chunk) + " is added before it is received");
    }
    if (reads_own && sum.places.size() == 1) return;
    const uint32_t first = NewTasks(MessageTask::Kind::kAdd, sum.chunk, Home(sum.chunk));
    if (reads_own) Read(first, sum.chunk);
    for (const uint32_t place : sum.places) {
      std::vector<Memory> memory = OwnOf(sum.chunk).memory;
      if (place != Messages::kOwn) {
        const auto slot = slots_.find(place);
        if (slot == slots_.end() || slot->second.chunk != sum.chunk) {
          return Fail("place " + std::to_string(place) + " holds no chunk " + std::to_string(sum.chunk));
        }
        const uint32_t received = slot->second.task;
        const bool once = ++slot->second.uses == 1;
        Wait(first, received, sum.chunk);
        ForEachTask(received, sum.chunk, [&](MessageTask& task, uint32_t segment) {
          task.accepts_view = once;
          memory[segment] = task.memory;
        });
      }
      ForEachTask(first, sum.chunk,
                  [&](MessageTask& task, uint32_t segment) { task.operands.push_back(memory[segment]); });
    }
    Write(first, sum.chunk);
    graph_.work_ += (End(sum.chunk) - Begin(sum.chunk)) * static_cast<int64_t>(sum.places.size() + 1);
  }

  // Adds the reports after all other messages, so that the first task that waits for a received message is the
  // addition.
  void AddReports() {
    for (const Lossy& lossy : lossy_receives_) AddReport(MessageTask::Kind::kSend, lossy, sent_[lossy.peer]++);
    for (const Lossy& lossy : lossy_sends_) AddReport(MessageTask::Kind::kReceive, lossy, received_[lossy.peer]++);
  }

  void AddReport(MessageTask::Kind kind, const Lossy& lossy, uint32_t index) {
    const std::vector<int64_t>& bounds = Bounds(lossy.chunk);
    for (uint32_t segment = 0; segment + 1 < bounds.size(); ++segment) {
      if (FindWholeSegments(layout_, bounds[segment], bounds[segment + 1], reported_bytes_).count == 0) continue;
      MessageTask task{};
      task.kind = kind;
      task.chunk = lossy.chunk;
      task.segment = segment;
      task.begin = bounds[segment];
      task.end = bounds[segment + 1];
      task.memory = {Memory::Where::kReport};
      task.peers = {{lossy.peer, index}};
      if (kind == MessageTask::Kind::kSend) {
        MessageTask& received = graph_.tasks_[lossy.task + segment];
        task.memory.slot = received.memory.slot;
        task.num_waits = 1;
        received.waiting.push_back(static_cast<uint32_t>(graph_.tasks_.size()));
      }
      graph_.tasks_.push_back(std::move(task));
    }
  }

  // Copies the rank's own bytes of a chunk to the rank's result, unless a task has already stored them in the result.
  void StoreResult(uint32_t chunk) {
    if (!Has(chunk)) return Fail("chunk " + std::to_string(chunk) + " is never received");
    if (OwnOf(chunk).writer) return;
    const uint32_t task = NewTasks(MessageTask::Kind::kAdd, chunk, Home(chunk));
    const std::vector<Memory> memory = OwnOf(chunk).memory;
    ForEachTask(task, chunk, [&](MessageTask& each, uint32_t segment) { each.operands.push_back(memory[segment]); });
    Write(task, chunk);
  }

  const Messages& messages_;
  const Layout& layout_;
  const Kind kind_;
  const bool is_lossy_, is_between_hosts_, is_in_place_;
  const int64_t reported_bytes_;
  MessageGraph graph_;
  Status status_;
  std::map<uint32_t, std::vector<int64_t>> bounds_;  // by chunk
  std::map<uint32_t, Own> own_;                      // by chunk
  std::map<uint32_t, std::vector<Memory>> homes_;    // by chunk, then segment
  std::map<uint32_t, Received> slots_;               // by place
  std::map<uint32_t, uint32_t> sent_, received_;     // by peer: the number of messages so far
  std::vector<Lossy> lossy_sends_, lossy_receives_;
};

Result<MessageGraph> MessageGraph::Make(const Messages& messages, const Layout& layout, Kind kind,
                                        const Options& options) {
  return MessageGraphBuilder(messages, layout, kind, options).Build();
}

}  // namespace jaxcomm
