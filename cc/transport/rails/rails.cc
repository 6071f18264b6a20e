#include "cc/transport/rails/rails.h"

#include <algorithm>
#include <string>

#include "cc/transport/joined_sends.h"

namespace jaxcomm {

Rails::Rails(uint32_t processes, uint32_t rails, Events* events)
    : events_(events), listeners_(rails), processes_(processes) {
  for (uint32_t rail = 0; rail < rails; ++rail) {
    listeners_[rail].owner = this;
    listeners_[rail].rail = rail;
  }
}

Status Rails::AddProcess(uint32_t process, RailTable table, std::vector<uint32_t> connected) {
  for (const uint32_t rail : table.rails()) {
    if (std::find(connected.begin(), connected.end(), rail) == connected.end()) {
      return InvalidArgument("process " + std::to_string(process) + " has a share on rail " + std::to_string(rail) +
                             ", which does not lead to it");
    }
  }
  processes_[process].emplace(Process{std::move(table), std::move(connected), /*failed=*/false, Status()});
  const uint32_t first = FirstRailTo(process);
  have_one_first_ = have_one_first_ && first == first_.value_or(first);
  first_ = first;
  return Status();
}

uint32_t Rails::RailTo(uint32_t process, const MessageId& id) const {
  return processes_[process]->table.RailOf(id.call_bytes, id.segment);
}

void Rails::Notify(uint32_t process, std::string_view notice) { rails_[FirstRailTo(process)]->Notify(process, notice); }

void Rails::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) {
  rails_[RailTo(process, id)]->Post(process, id, std::move(spans), accepts_view, std::move(done));
}

void Rails::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  std::vector<std::vector<Receiver>> parts(rails_.size());
  for (const Receiver& receiver : to) parts[RailTo(receiver.process, receiver.id)].push_back(receiver);
  SendParts(rails_, parts, std::move(spans), std::move(done));
}

void Rails::Flush() {
  for (Transport* const rail : rails_) rail->Flush();
}

void Rails::Cancel(const CallId& call) {
  for (Transport* const rail : rails_) rail->Cancel(call);
}

void Rails::Disconnect(uint32_t process, const Status& why) {
  for (Transport* const rail : rails_) rail->Disconnect(process, why);
}

void Rails::Expect() {
  if (helped()) rails_[*first_]->Expect();
}

void Rails::EndExpecting() {
  if (helped()) rails_[*first_]->EndExpecting();
}

void Rails::Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) {
  if (!helped()) return Flush();
  const auto flush_others = [this] {
    for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
      if (rail != *first_) rails_[rail]->Flush();
    }
  };
  flush_others();  // the first rail asks nothing while its own thread serves it
  rails_[*first_]->Help(limit, [&] {
    const bool is_over = over();
    flush_others();
    return is_over;
  });
}

void Rails::End(uint32_t process, uint32_t rail, const Status& why, bool left) {
  std::vector<uint32_t> open;
  Status gone;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Process& ended = *processes_[process];
    ended.open.erase(std::remove(ended.open.begin(), ended.open.end(), rail), ended.open.end());
    if (ended.why.ok() || (!ended.failed && !left)) ended.why = why;
    ended.failed = ended.failed || !left;
    open = ended.open;
    gone = ended.why;
  }
  if (open.empty()) return events_->OnPeerGone(process, gone);
  if (left) return;
  for (const uint32_t other : open) rails_[other]->Disconnect(process, gone);
}

}  // namespace jaxcomm
