// Messages that arrivals carry.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/message_call.h"

namespace jaxcomm {

// A message that arrivals carry: it is sent, or received where it has come.
void MessageCall::BeginCarried(uint32_t local, uint32_t task, MessageSteps& steps) {
  const MessageTask& it = graph(local).tasks()[task];
  if (it.kind == MessageTask::Kind::kReceive) {
    const std::shared_ptr<const std::string>& carried = ranks_[RankOf(local, it.peers[0].rank)].carried;
    if (!carried) return;
    const std::shared_ptr<const std::byte> view(carried, reinterpret_cast<const std::byte*>(carried->data()));
    it.accepts_view ? memory(local).Keep(it, view) : memory(local).Copy(it, view.get());
  }
  End(local, task, steps);
}

// To the ranks of this process that have arrived; the others find it when they do.
void MessageCall::DeliverCarried(uint32_t rank, std::shared_ptr<const std::string> carried, MessageSteps& steps) {
  if (!failure_.ok()) return;
  const auto bytes = static_cast<int64_t>(carried ? carried->size() : 0);
  if (bytes != site_->carried_bytes()) {
    const std::string found = std::to_string(bytes) + " bytes with its arrival instead of ";
    const Status why(Code::kInternal, Describe() + ": rank " + std::to_string(site_->NameOf(rank)) + " (" +
                                          site_->PlaceOf(rank) + ") sent " + found +
                                          std::to_string(site_->carried_bytes()) +
                                          ".\n  Cure: run the same jaxcomm in all processes.");
    return FailLocked(why, /*announce=*/true, steps);
  }
  ranks_[rank].carried = std::move(carried);
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    if (!locals_[local].memory || site_->ranks()[rank].group != site_->ranks()[this->rank(local)].group) continue;
    const std::vector<MessageTask>& tasks = graph(local).tasks();
    for (uint32_t task = 0; task < tasks.size(); ++task) {
      const bool receives = tasks[task].kind == MessageTask::Kind::kReceive;
      if (receives && RankOf(local, tasks[task].peers[0].rank) == rank) BeginCarried(local, task, steps);
    }
  }
}

}  // namespace jaxcomm
