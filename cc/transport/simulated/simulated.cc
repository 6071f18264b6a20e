#include "cc/transport/simulated/simulated.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/thread.h"
#include "cc/transport/local/local.h"

namespace jaxcomm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLongestDelay = 300;  // microseconds

int64_t Extent(const std::vector<ConstSpan>& spans) { return spans.empty() ? 0 : spans.back().at + spans.back().bytes; }

std::vector<std::pair<int64_t, int64_t>> Parts(const std::vector<ConstSpan>& spans) {
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const ConstSpan& span : spans) parts.push_back({span.at, span.bytes});
  return parts;
}

}  // namespace

class SimulatedNetwork::Endpoint : public Transport {
 public:
  Endpoint(SimulatedNetwork& network, uint32_t self, uint32_t seed)
      : network_(network), self_(self), random_(seed), last_notice_(network.endpoints_.capacity()) {
    thread_ = *StartThread([this] { Deliver(); });
  }
  ~Endpoint() override { Stop(); }

  void Connect(Events* events) { events_ = events; }

  void Notify(uint32_t process, std::string_view notice) override {
    if (process == self_ || dead_.load()) return;
    Item item;
    item.notice = std::string(notice);
    network_.endpoints_[process]->Take(self_, std::move(item));
  }

  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override {
    if (process == self_) return local_.Post(process, id, std::move(spans), accepts_view, std::move(done));
    std::unique_lock<std::mutex> lock(mutex_);
    if (told_.count(process) > 0 && early_.count(id) == 0) {
      lock.unlock();
      return done(Status(Code::kInternal, "process " + std::to_string(process) + " ended"), nullptr);
    }
    posted_[id] = {process, std::move(spans), accepts_view, std::move(done)};
    wake_.notify_all();
  }

  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override {
    if (dead_.load()) return done(Status(Code::kInternal, "this process has ended"));
    const auto outgoing = std::make_shared<Outgoing>();
    outgoing->spans = std::move(spans);
    outgoing->done = std::move(done);
    outgoing->left = to.size();
    outgoing->call = to[0].id.call;
    outgoing->sender = this;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      outgoing->copied = random_() % 2 == 0;
    }
    if (outgoing->copied) outgoing->Copy();
    std::vector<Receiver> here;
    for (const Receiver& receiver : to) {
      if (receiver.process == self_) {
        here.push_back(receiver);
        continue;
      }
      Item item;
      item.id = receiver.id;
      item.outgoing = outgoing;
      network_.endpoints_[receiver.process]->Take(self_, std::move(item));
    }
    if (outgoing->copied && here.empty()) return outgoing->done(Status());
    if (here.empty()) return;
    local_.Send(here, outgoing->spans, [outgoing, here](const Status&) {
      if (outgoing->copied) {
        outgoing->done(Status());
      } else {
        outgoing->Leave(here.size());
      }
    });
  }

  void Flush() override {}

  void Cancel(const CallId& call) override {
    local_.Cancel(call);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      canceled_.insert(call);
      for (auto at = posted_.begin(); at != posted_.end();) at = at->first.call == call ? posted_.erase(at) : ++at;
      copied_.wait(lock, [&] { return !copying_ || !(*copying_ == call); });
    }
    // What others read of it.
    std::unique_lock<std::mutex> lock(reading_mutex_);
    canceled_sends_.insert(call);
    read_.wait(lock, [&] { return reading_[call] == 0; });
  }

  void Stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Nothing goes out any more, and all others are gone for it.
  void Die() {
    dead_ = true;
    for (uint32_t other = 0; other < network_.endpoints_.size(); ++other) {
      if (other == self_) continue;
      network_.endpoints_[other]->Lose(self_, "process " + std::to_string(self_) + " ended");
      Lose(other, "connection lost");
    }
  }

 private:
  struct Outgoing {
    std::vector<ConstSpan> spans;
    Sent done;
    std::atomic<size_t> left{0};
    CallId call;
    Endpoint* sender;
    bool copied = false;
    std::atomic<bool> lost{false};
    std::shared_ptr<std::byte> bytes;

    // Those that were copied have called back.
    void Leave(size_t receivers) {
      if ((left -= receivers) == 0 && !lost.exchange(true) && !sender->IsCanceled(call)) done(Status());
    }
    void Lose(uint32_t receiver) {
      if (copied || lost.exchange(true) || sender->IsCanceled(call)) return;
      done(Status(Code::kInternal, "process " + std::to_string(receiver) + " ended"));
    }
    void Copy() {
      bytes.reset(new std::byte[static_cast<size_t>(std::max<int64_t>(Extent(spans), 1))],
                  std::default_delete<std::byte[]>());
      for (const ConstSpan& span : spans) {
        std::memcpy(bytes.get() + span.at, span.data, static_cast<size_t>(span.bytes));
      }
    }
  };
  struct Item {
    std::optional<std::string> notice;
    std::optional<std::string> gone;
    MessageId id;
    std::shared_ptr<Outgoing> outgoing;
    uint32_t from = 0;
  };
  struct Posted {
    uint32_t process;
    std::vector<Span> spans;
    bool accepts_view;
    Received done;
  };

  // From the sender's side.
  void Take(uint32_t from, Item item) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (lost_.count(from) > 0) {
      lock.unlock();
      if (item.outgoing) item.outgoing->Lose(self_);
      return;
    }
    Queue(from, std::move(item));
  }

  void Queue(uint32_t from, Item item) {
    item.from = from;
    Clock::time_point due = Clock::now() + std::chrono::microseconds(random_() % kLongestDelay);
    due = std::max(due, last_notice_[from]);
    if (item.notice) last_notice_[from] = due;
    queue_.emplace(due, std::move(item));
    wake_.notify_all();
  }

  void Lose(uint32_t from, const std::string& why) {
    Item item;
    item.gone = why;
    std::vector<std::shared_ptr<Outgoing>> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!lost_.insert(from).second) return;
      Queue(from, std::move(item));
      for (auto at = queue_.begin(); at != queue_.end();) {
        const bool drop = at->second.from == from && at->second.outgoing;
        if (drop) dropped.push_back(at->second.outgoing);
        at = drop ? queue_.erase(at) : ++at;
      }
      for (auto at = early_.begin(); at != early_.end();) {
        const bool drop = at->second.from == from;
        if (drop) dropped.push_back(at->second.outgoing);
        at = drop ? early_.erase(at) : ++at;
      }
    }
    for (const auto& outgoing : dropped) outgoing->Lose(self_);
  }

  void Deliver() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      // What came early and has been posted since.
      bool found = false;
      for (auto at = early_.begin(); at != early_.end() && !found; ++at) {
        if (posted_.count(at->first) == 0 || views_[at->second.from] >= kMostViews) continue;
        Item item = std::move(at->second);
        early_.erase(at);
        found = true;
        Hand(lock, std::move(item));
        break;
      }
      if (found) continue;
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
      if (item.outgoing) {
        if (canceled_.count(item.id.call) == 0) early_.emplace(item.id, std::move(item));
        continue;
      }
      lock.unlock();
      if (item.notice) events_->OnNotice(item.from, *item.notice);
      if (item.gone) events_->OnPeerGone(item.from, Status(Code::kInternal, *item.gone));
      lock.lock();
      if (item.gone) FailPosts(lock, item.from, Status(Code::kInternal, *item.gone));
    }
  }

  void FailPosts(std::unique_lock<std::mutex>& lock, uint32_t from, const Status& why) {
    told_.insert(from);
    std::vector<Received> failed;
    for (auto at = posted_.begin(); at != posted_.end();) {
      const bool fails = at->second.process == from && early_.count(at->first) == 0;
      if (fails) failed.push_back(std::move(at->second.done));
      at = fails ? posted_.erase(at) : ++at;
    }
    lock.unlock();
    for (const Received& done : failed) done(why, nullptr);
    failed.clear();
    lock.lock();
  }

  // Copies a message to where it was posted, or gives a view of it.
  void Hand(std::unique_lock<std::mutex>& lock, Item item) {
    const auto at = posted_.find(item.id);
    const Posted posted = std::move(at->second);
    posted_.erase(at);
    copying_ = item.id.call;
    const bool view = posted.accepts_view && random_() % 2 == 0;
    lock.unlock();
    Outgoing& outgoing = *item.outgoing;
    Endpoint& sender = *outgoing.sender;
    const bool read = outgoing.copied || sender.BeginRead(outgoing.call);
    std::shared_ptr<const std::byte> bytes;
    Status status;
    if (read) {
      std::vector<ConstSpan> spans(posted.spans.size());
      std::transform(posted.spans.begin(), posted.spans.end(), spans.begin(), [](const Span& span) {
        return ConstSpan{span.data, span.bytes, span.at};
      });
      if (Parts(spans) != Parts(outgoing.spans)) status = Status(Code::kInternal, "messages of different sizes");
      if (!outgoing.copied && view) {
        // The view must outlive the sender's spans.
        Outgoing copy;
        copy.spans = outgoing.spans;
        copy.Copy();
        bytes = copy.bytes;
      } else if (view) {
        bytes = outgoing.bytes;
      } else if (status.ok()) {
        for (size_t i = 0; i < posted.spans.size(); ++i) {
          const std::byte* from = outgoing.copied ? outgoing.bytes.get() + posted.spans[i].at : outgoing.spans[i].data;
          std::memcpy(posted.spans[i].data, from, static_cast<size_t>(posted.spans[i].bytes));
        }
      }
      if (!outgoing.copied) sender.EndRead(outgoing.call);
    }
    lock.lock();
    const bool canceled = canceled_.count(item.id.call) > 0;
    copying_.reset();
    copied_.notify_all();
    if (read && !canceled && view) {
      ++views_[item.from];
      bytes = std::shared_ptr<const std::byte>(bytes.get(), [this, bytes, from = item.from](const std::byte*) {
        std::lock_guard<std::mutex> guard(mutex_);
        --views_[from];
        wake_.notify_all();
      });
    }
    lock.unlock();
    if (read && !canceled) posted.done(status, view ? std::move(bytes) : nullptr);
    bytes.reset();
    if (read && !outgoing.copied) outgoing.Leave(1);
    lock.lock();
  }

  bool BeginRead(const CallId& call) {
    std::lock_guard<std::mutex> lock(reading_mutex_);
    if (canceled_sends_.count(call) > 0) return false;
    ++reading_[call];
    return true;
  }
  void EndRead(const CallId& call) {
    std::lock_guard<std::mutex> lock(reading_mutex_);
    --reading_[call];
    read_.notify_all();
  }
  bool IsCanceled(const CallId& call) {
    std::lock_guard<std::mutex> lock(reading_mutex_);
    return canceled_sends_.count(call) > 0;
  }

  SimulatedNetwork& network_;
  const uint32_t self_;
  Events* events_ = nullptr;
  LocalTransport local_;
  std::atomic<bool> dead_{false};

  std::mutex mutex_;
  std::condition_variable wake_, copied_;
  std::mt19937 random_;
  std::vector<Clock::time_point> last_notice_;  // by process
  std::multimap<Clock::time_point, Item> queue_;
  std::map<MessageId, Item> early_;
  std::map<MessageId, Posted> posted_;
  std::set<CallId> canceled_;
  std::set<uint32_t> lost_;  // processes that have ended
  std::set<uint32_t> told_;  // those of them of which this one has heard
  std::map<uint32_t, int> views_;
  std::optional<CallId> copying_;
  bool stopping_ = false;

  std::mutex reading_mutex_;
  std::condition_variable read_;
  std::set<CallId> canceled_sends_;
  std::map<CallId, int> reading_;

  std::thread thread_;
};

SimulatedNetwork::SimulatedNetwork(uint32_t processes, uint32_t seed) {
  endpoints_.reserve(processes);
  for (uint32_t process = 0; process < processes; ++process) {
    endpoints_.push_back(std::make_unique<Endpoint>(*this, process, seed * processes + process));
  }
}

SimulatedNetwork::~SimulatedNetwork() { Stop(); }

void SimulatedNetwork::Connect(uint32_t process, Transport::Events* events) { endpoints_[process]->Connect(events); }

Transport& SimulatedNetwork::transport(uint32_t process) { return *endpoints_[process]; }

void SimulatedNetwork::Kill(uint32_t process) { endpoints_[process]->Die(); }

void SimulatedNetwork::Stop() {
  for (auto& endpoint : endpoints_) endpoint->Stop();
}

}  // namespace jaxcomm
