// Delivers notices and messages to a process of a SimulatedNetwork. Messages arrive late and out of order. When a
// sender has ended, its messages no longer arrive.
#include <algorithm>

#include "cc/transport/simulated/endpoint.h"

namespace jaxcomm {
namespace {

constexpr int kLongestDelay = 300;  // microseconds

template <typename Byte>
std::vector<std::pair<int64_t, int64_t>> Parts(const std::vector<BasicSpan<Byte>>& spans) {
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const BasicSpan<Byte>& span : spans) parts.push_back({span.at, span.bytes});
  return parts;
}

}  // namespace

// Called by the sender's endpoint.
void SimulatedNetwork::Endpoint::Take(Item item) {
  Lock lock(mutex_);
  if (lost_.count(item.from) == 0) return Queue(std::move(item));
  lock.unlock();
  if (item.message) item.message->Lose(self_);
}

void SimulatedNetwork::Endpoint::Queue(Item item) {
  Clock::time_point due = Clock::now() + std::chrono::microseconds(random_() % kLongestDelay);
  due = std::max(due, last_notice_[item.from]);
  if (item.notice) last_notice_[item.from] = due;
  queue_.emplace(due, std::move(item));
  wake_.notify_all();
}

void SimulatedNetwork::Endpoint::Lose(uint32_t process, const std::string& why) {
  std::vector<std::shared_ptr<SimulatedMessage>> dropped;
  {
    Lock lock(mutex_);
    if (!lost_.insert(process).second) return;
    dropped = DropMessages(process);
    Queue({process, std::nullopt, why, nullptr, {}});
  }
  for (const auto& message : dropped) message->Lose(self_);
}

// Removes and returns the undelivered messages that `process` has sent.
std::vector<std::shared_ptr<SimulatedMessage>> SimulatedNetwork::Endpoint::DropMessages(uint32_t process) {
  std::vector<std::shared_ptr<SimulatedMessage>> dropped;
  const auto drop_of = [&](auto& items) {
    for (auto at = items.begin(); at != items.end();) {
      const bool drops = at->second.from == process && at->second.message;
      if (drops) dropped.push_back(std::move(at->second.message));
      at = drops ? items.erase(at) : ++at;
    }
  };
  drop_of(queue_);
  drop_of(early_);
  return dropped;
}

void SimulatedNetwork::Endpoint::Deliver() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (DeliverEarly(lock)) continue;
    if (queue_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const Clock::time_point due = queue_.begin()->first;
    if (Clock::now() < due) {
      wake_.wait_until(lock, due);
      continue;
    }
    Item item = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    if (item.message) {
      if (!cancelled_.Contains(item.id.call)) early_.emplace(item.id, std::move(item));
      continue;
    }
    lock.unlock();
    if (item.notice) events_->OnNotice(item.from, *item.notice);
    if (item.gone) events_->OnPeerGone(item.from, Status(Code::kInternal, *item.gone));
    lock.lock();
    if (item.gone) FailPosts(lock, item.from, Status(Code::kInternal, *item.gone));
  }
}

bool SimulatedNetwork::Endpoint::MayKeep(uint32_t process) {
  Lock lock(mutex_);
  return 2 * views_[process] <= kMostViews;
}

// Delivers one message that has arrived, is posted, and need not wait for the release of a view. Returns false if there
// is no such message.
bool SimulatedNetwork::Endpoint::DeliverEarly(Lock& lock) {
  for (auto at = early_.begin(); at != early_.end(); ++at) {
    if (posted_.count(at->first) == 0 || views_[at->second.from] >= kMostViews) continue;
    const Item item = std::move(at->second);
    early_.erase(at);
    Hand(lock, item);
    return true;
  }
  return false;
}

void SimulatedNetwork::Endpoint::FailPosts(Lock& lock, uint32_t process, const Status& why) {
  notified_.insert(process);
  std::vector<Received> failed;
  for (auto at = posted_.begin(); at != posted_.end();) {
    const bool fails = at->second.process == process && early_.count(at->first) == 0;
    if (fails) failed.push_back(std::move(at->second.done));
    at = fails ? posted_.erase(at) : ++at;
  }
  lock.unlock();
  for (const Received& done : failed) done(why, nullptr);
  failed.clear();
  lock.lock();
}

// Copies a message into the spans of its Post, or gives the receiver a view of the message.
void SimulatedNetwork::Endpoint::Hand(Lock& lock, const Item& item) {
  const auto at = posted_.find(item.id);
  const Posted posted = std::move(at->second);
  posted_.erase(at);
  const CallId& call = item.id.call;
  copying_ = {item.from, call};
  const bool as_view = posted.accepts_view && random_() % 2 == 0;
  lock.unlock();
  SimulatedMessage& message = *item.message;
  std::shared_ptr<const std::byte> view;
  Status status;
  const bool is_read = message.is_copied || message.readers->Begin(call, self_);
  if (is_read) status = Read(message, posted, as_view ? &view : nullptr);
  if (is_read && !message.is_copied) message.readers->End(call, self_);
  lock.lock();
  const bool is_cancelled = cancelled_.Contains(call);
  copying_.reset();
  copied_.notify_all();
  if (view && !is_cancelled) {
    ++views_[item.from];
    view = std::shared_ptr<const std::byte>(view.get(), [this, view, from = item.from](const std::byte*) {
      Lock guard(mutex_);
      --views_[from];
      wake_.notify_all();
    });
  }
  lock.unlock();
  if (is_read && !is_cancelled) posted.done(status, std::move(view));
  view.reset();
  if (!is_read) message.Lose(self_);
  if (is_read && !message.is_copied) message.Leave(1);
  lock.lock();
}

Status SimulatedNetwork::Endpoint::Read(const SimulatedMessage& message, const Posted& posted,
                                        std::shared_ptr<const std::byte>* view) const {
  const bool fits = Parts(posted.spans) == Parts(message.spans);
  if (view) {
    *view = message.is_copied ? message.bytes : message.Copy();  // copied, because the view outlives the sender's spans
  } else if (fits && message.is_copied) {
    Scatter(message.bytes.get(), 0, posted.spans);
  } else if (fits) {
    for (size_t i = 0; i < posted.spans.size(); ++i) {
      CopyBytes(posted.spans[i].data, message.spans[i].data, posted.spans[i].bytes);
    }
  }
  return fits ? Status() : Status(Code::kInternal, "messages of different sizes");
}

}  // namespace jaxcomm
