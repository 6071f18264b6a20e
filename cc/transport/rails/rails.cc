#include "cc/transport/rails/rails.h"

#include <algorithm>
#include <exception>
#include <string>

#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"

namespace jaxcomm {
namespace {

Status LeadsNowhere(uint32_t process, uint32_t rail) {
  return InvalidArgument("process " + std::to_string(process) + " has a share on rail " + std::to_string(rail) +
                         ", which does not lead to it");
}

}  // namespace

Rails::Rails(uint32_t processes, uint32_t rails, Events* events)
    : events_(events), listeners_(rails), peers_(processes) {
  for (uint32_t rail = 0; rail < rails; ++rail) {
    listeners_[rail].owner = this;
    listeners_[rail].rail = rail;
  }
}

Rails::~Rails() { Stop(); }

void Rails::Connect(std::vector<RailTransport*> rails) {
  rails_ = std::move(rails);
  for (RailTransport* const rail : rails_) {
    rail->OnEarly([this](uint32_t process, const MessageId& id, int64_t bytes) { ReceiveEarly(process, id, bytes); });
  }
}

Status Rails::AddProcess(uint32_t process, const std::vector<RailTable::Range>& shares,
                         const std::vector<uint32_t>& connected, const std::vector<uint32_t>& down) {
  Result<RailTable> table = RailTable::Make(shares);
  if (!table.ok()) return table.status();
  const auto is_in = [](const std::vector<uint32_t>& rails, uint32_t rail) {
    return std::find(rails.begin(), rails.end(), rail) != rails.end();
  };
  if (connected.empty()) return InvalidArgument("no rail leads to process " + std::to_string(process));
  for (const uint32_t rail : table.value().rails()) {
    if (!is_in(connected, rail) && !is_in(down, rail)) {
      return LeadsNowhere(process, rail);
    }
  }
  auto peer =
      std::make_unique<Peer>(process, static_cast<uint32_t>(listeners_.size()), shares, std::move(table.value()));
  for (const uint32_t rail : connected) peer->rails[rail].state = Peer::Rail::State::kOpen;
  for (const uint32_t rail : down) {
    Peer::Rail& fenced = peer->rails[rail];
    fenced.BeginFence(Status(Code::kInternal, "the rail was down when the processes were connected"));
    fenced.state = Peer::Rail::State::kFenced;
    fenced.fences = fenced.their_fences = 1;
    Report(*peer, rail, /*is_open=*/false);
  }
  if (!down.empty()) peer->Divide();
  const uint32_t first = *peer->FirstRail();
  have_one_first_ = have_one_first_ && first == first_.value_or(first);
  first_ = first;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    peers_[process] = std::move(peer);
  }
  Deliver(process);
  return Status();
}

Status Rails::SetShares(uint32_t process, const std::vector<RailTable::Range>& shares) {
  const Result<RailTable> table = RailTable::Make(shares);
  if (!table.ok()) return table.status();
  Lock lock(mutex_);
  if (process >= peers_.size() || !peers_[process] || shares[0].shares.size() != rails_.size()) {
    return InvalidArgument("process " + std::to_string(process) + " is unknown, or its shares are not one per rail");
  }
  Peer& peer = *peers_[process];
  for (const uint32_t rail : table.value().rails()) {
    if (peer.rails[rail].state == Peer::Rail::State::kNone) return LeadsNowhere(process, rail);
  }
  peer.balance = Balance(shares);
  peer.Divide();
  return Status();
}

void Rails::Notify(uint32_t process, std::string_view notice) {
  std::string text(NumberedNotices::kHeaderBytes, '\0');
  text += notice;
  NumberedNotices::Bytes bytes;
  std::optional<uint32_t> rail;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (!peer.is_open()) return;
    bytes = peer.notices.Add(kNotice, std::move(text));
    rail = peer.FirstRail();
  }
  SendNotice(process, rail, *bytes);
}

// If no rail is open, numbered notices wait until a rail opens.
void Rails::SendNotice(uint32_t process, std::optional<uint32_t> rail, const std::string& bytes) {
  if (!rail) return;
  rails_[*rail]->Notify(process, bytes);
  Wake();
}

// Skips the callbacks of cancelled calls: an earlier callback or another thread may have cancelled a call meanwhile.
void Rails::CallBack(std::vector<Due> due) {
  for (const Due& callback : due) {
    Lock lock(mutex_);
    if (cancelled_.Contains(callback.call)) continue;
    lock.unlock();
    callback.run();
  }
}

void Rails::CallBack(const CallId& call, const Received& done, const Status& status,
                     std::shared_ptr<const std::byte> view) {
  {
    Lock lock(mutex_);
    if (cancelled_.Contains(call)) return;
  }
  done(status, std::move(view));
}

void Rails::Flush() {
  for (RailTransport* const rail : rails_) rail->Flush();
}

// Asks all rails, because a message may arrive on any of them.
bool Rails::MayKeep(uint32_t process) {
  return std::all_of(rails_.begin(), rails_.end(), [process](RailTransport* rail) { return rail->MayKeep(process); });
}

void Rails::Cancel(const CallId& call) {
  // The callbacks are destroyed without the lock, because objects that they own may call Rails.
  std::vector<Received> received;
  std::vector<Sent> sent;
  {
    Lock lock(mutex_);
    cancelled_.Add(call);
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (peer) peer->Cancel(call, received, sent);
    }
    const auto [first, last] = only_read_.equal_range(call);
    for (auto at = first; at != last; ++at) sent.push_back(std::exchange(at->second->done, nullptr));
    only_read_.erase(first, last);
  }
  for (RailTransport* const rail : rails_) rail->Cancel(call);
}

void Rails::Report(Peer& peer, uint32_t rail, bool is_open) {
  peer.deliveries.push_back([this, process = peer.process, rail, is_open] { events_->OnRail(process, rail, is_open); });
}

// Delivers notices, rail events and finally the end of the process, in order. Runs on each thread that has queued an
// event, but does nothing while another thread delivers. If callbacks throw, rethrows the first exception after the
// last callback.
void Rails::Deliver(uint32_t process) {
  Lock lock(mutex_);
  Peer& peer = *peers_[process];
  if (std::exchange(peer.delivering, true)) return;
  std::exception_ptr thrown;
  while (!peer.deliveries.empty()) {
    const std::function<void()> run = std::move(peer.deliveries.front());
    peer.deliveries.pop_front();
    lock.unlock();
    try {
      run();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
    lock.lock();
  }
  peer.delivering = false;
  if (thrown) std::rethrow_exception(thrown);
}

void Rails::Expect() {
  if (helped()) rails_[*first_]->Expect();
}

void Rails::EndExpecting() {
  if (helped()) rails_[*first_]->EndExpecting();
}

void Rails::Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) {
  if (!helped()) return Flush();
  const auto flush_others = [this] {
    for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
      if (rail != *first_) rails_[rail]->Flush();
    }
  };
  flush_others();  // needed here, because Help does not call `over` while the first rail's own thread polls
  rails_[*first_]->Help(limit, yields, [&] {
    const bool is_over = over();
    flush_others();
    return is_over;
  });
}

}  // namespace jaxcomm
