// A transport driven by a test. Messages and notices arrive only when the test calls Step, and connections fail only
// when the test makes them fail.
//
//   FakeRail rail(/*processes=*/3);
//   rails.Connect({&rail.at(0), …});  rail.Connect(0, rails.events(0));
//   while (rail.Step(random)) {}   // delivers one item in flight, between any two processes
//   rail.SetSilent(0, 1, true);    // messages from process 0 to 1 do not arrive
//   rail.Reset(0, 1);              // processes 0 and 1 get OnPeerGone for each other
//   rail.Reconnect(0, 1);
//
// Messages and notices from one process to another arrive in order. A lossy message loses its unimportant spans, up to
// `may_lose` bytes. A lossy message that has not been posted is dropped. Only one thread may use the rail.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/lossy_transport.h"
#include "cc/transport/rail_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class FakeRail {
 public:
  explicit FakeRail(uint32_t processes) {
    for (uint32_t i = 0; i < processes; ++i) ends_.push_back(std::make_unique<End>(this, i));
  }

  RailTransport& at(uint32_t process) { return *ends_[process]; }
  void Connect(uint32_t process, Transport::Events* events) { ends_[process]->events = events; }
  // BeforePost, BeforeFence: simulate another thread, which calls `run` just before the next Post or Fence of any
  // process.
  void BeforePost(std::function<void()> run) { before_post_ = std::move(run); }
  void BeforeFence(std::function<void()> run) { before_fence_ = std::move(run); }
  // Makes later sends keep their callbacks until TakeHeld, as if the rail still read the spans.
  void HoldSents() { holds_ = true; }
  std::vector<Sent> TakeHeld() { return std::exchange(held_, {}); }
  int carried() const { return carried_; }  // number of messages sent
  int lossy() const { return lossy_; }      // number of lossy messages sent
  int flushed() const { return flushed_; }

  void SetSilent(uint32_t from, uint32_t to, bool silent) {
    silent ? (void)silent_.insert({from, to}) : (void)silent_.erase({from, to});
  }
  void Reset(uint32_t one, uint32_t other) {
    ends_[one]->Lose(other);
    ends_[other]->Lose(one);
  }
  void Reconnect(uint32_t one, uint32_t other) {
    for (const auto& ends : {std::pair(one, other), std::pair(other, one)}) {
      queues_[ends].clear();
      ends_[ends.first]->closed.erase(ends.second);
    }
  }
  void Leave(uint32_t process, uint32_t other) {
    queues_[{process, other}].push_back({std::nullopt, MessageId(), {}, /*leaves=*/true});
  }

  // Delivers one item. Returns false if there is no item to deliver.
  template <typename Random>
  bool Step(Random& random) {
    std::vector<std::deque<Item>*> full;
    std::vector<std::pair<uint32_t, uint32_t>> ends;
    for (auto& [pair, queue] : queues_) {
      if (queue.empty() || silent_.count(pair) > 0) continue;
      full.push_back(&queue);
      ends.push_back(pair);
    }
    if (full.empty()) return false;
    const size_t at = random() % full.size();
    const Item item = std::move(full[at]->front());
    full[at]->pop_front();
    ++confirmed_[ends[at]];
    ends_[ends[at].second]->Take(ends[at].first, item);
    return true;
  }

 private:
  struct Item {
    std::optional<std::string> notice;
    MessageId id;
    std::vector<std::byte> bytes;
    bool leaves = false;
    std::vector<bool> important = {};  // whether each span is important; empty unless lossy
    int64_t may_lose = 0;
  };
  struct Posted {
    uint32_t process;
    std::vector<Span> spans;
    ReceivedLossy done;
  };

  class End : public RailTransport, public LossyTransport {
   public:
    End(FakeRail* rail, uint32_t self) : rail_(rail), self_(self) {}

    void Notify(uint32_t process, std::string_view notice) override {
      if (closed.count(process) == 0) rail_->queues_[{self_, process}].push_back({std::string(notice), {}, {}});
    }
    void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool, Received done) override {
      PostLossy(process, id, std::move(spans), /*may_lose=*/0,
                [done = std::move(done)](const Status& status, std::shared_ptr<const std::byte> view,
                                         const std::vector<ByteRange>&) { done(status, std::move(view)); });
    }
    LossyTransport* lossy() override { return this; }
    void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit&,
                   ReceivedLossy done) override {
      if (const auto run = std::exchange(rail_->before_post_, nullptr)) run();
      if (cancelled_.count(id.call) > 0) return;
      if (const auto early = early_.find(id); early != early_.end()) {
        Store(early->second.bytes, spans);
        early_.erase(early);
        done(Status(), nullptr, {});
      } else if (closed.count(process) > 0) {
        done(Status(Code::kInternal, "closed"), nullptr, {});
      } else if (!posted_.emplace(id, Posted{process, std::move(spans), std::move(done)}).second) {
        throw std::logic_error("posted twice");
      }
    }
    void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override {
      std::vector<std::byte> bytes;
      for (const ConstSpan& span : spans) bytes.insert(bytes.end(), span.data, span.data + span.bytes);
      for (const Receiver& receiver : to) {
        if (closed.count(receiver.process) > 0) continue;
        rail_->queues_[{self_, receiver.process}].push_back({std::nullopt, receiver.id, bytes});
        ++rail_->carried_;
      }
      rail_->holds_ ? rail_->held_.push_back(std::move(done)) : done(Status());
    }
    void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                   const LossLimit& limit, Sent done) override {
      Send({to}, std::move(spans), std::move(done));
      if (closed.count(to.process) > 0) return;
      Item& sent = rail_->queues_[{self_, to.process}].back();
      sent.important = important;
      sent.may_lose = limit.bytes;
      ++rail_->lossy_;
    }
    void Flush() override { ++rail_->flushed_; }
    void Cancel(const CallId& call) override {
      cancelled_.insert(call);
      for (auto at = posted_.begin(); at != posted_.end();) at = at->first.call == call ? posted_.erase(at) : ++at;
      for (auto at = early_.begin(); at != early_.end();) at = at->first.call == call ? early_.erase(at) : ++at;
    }
    void OnEarly(Early early) override { early_event_ = std::move(early); }
    void Withdraw(uint32_t, const MessageId& id) override { posted_.erase(id); }
    void Fence(uint32_t process, const Status&) override {
      if (const auto run = std::exchange(rail_->before_fence_, nullptr)) run();
      if (!closed.insert(process).second) return Forget(process);
      Forget(process);
      rail_->queues_[{process, self_}].clear();
      rail_->queues_[{self_, process}].clear();
      if (rail_->silent_.count({self_, process}) == 0) rail_->ends_[process]->Lose(self_);
    }
    SendProgress ProgressTo(uint32_t process) override {
      return {rail_->confirmed_[{self_, process}], static_cast<uint32_t>(2 * rail_->queues_[{self_, process}].size())};
    }

    void Take(uint32_t from, const Item& item) {
      if (item.leaves) {
        closed.insert(from);
        return events->OnPeerLeft(from, Status(Code::kInternal, "it has left"));
      }
      if (item.notice) return events->OnNotice(from, *item.notice);
      if (cancelled_.count(item.id.call) > 0) return;
      const auto at = posted_.find(item.id);
      if (at == posted_.end()) {
        if (!item.important.empty()) return;
        if (!early_.emplace(item.id, EarlyMessage{from, item.bytes}).second) throw std::logic_error("sent twice");
        const auto bytes = static_cast<int64_t>(item.bytes.size());
        if (bytes > kMaxSmall && early_event_) early_event_(from, item.id, bytes);
        return;
      }
      const Posted posted = std::move(at->second);
      posted_.erase(at);
      Store(item.bytes, posted.spans);
      posted.done(Status(), nullptr, Lose(item, posted.spans));
    }
    void Lose(uint32_t process) {
      if (!closed.insert(process).second) return;
      rail_->queues_[{process, self_}].clear();
      rail_->queues_[{self_, process}].clear();
      std::vector<ReceivedLossy> ended;
      for (auto at = posted_.begin(); at != posted_.end();) {
        if (at->second.process == process) ended.push_back(std::move(at->second.done));
        at = at->second.process == process ? posted_.erase(at) : std::next(at);
      }
      for (const ReceivedLossy& done : ended) done(Status(Code::kInternal, "reset"), nullptr, {});
      events->OnPeerGone(process, Status(Code::kInternal, "reset"));
    }
    size_t kept() const { return early_.size() + posted_.size(); }

    Transport::Events* events = nullptr;
    std::set<uint32_t> closed;

   private:
    struct EarlyMessage {
      uint32_t from;
      std::vector<std::byte> bytes;
    };

    static void Store(const std::vector<std::byte>& bytes, const std::vector<Span>& spans) {
      const std::byte* from = bytes.data();
      for (const Span& span : spans) {
        std::memcpy(span.data, from, static_cast<size_t>(span.bytes));
        from += span.bytes;
      }
    }
    static std::vector<ByteRange> Lose(const Item& item, const std::vector<Span>& spans) {
      std::vector<ByteRange> lost;
      int64_t left = item.may_lose;
      for (size_t i = 0; i < item.important.size(); ++i) {
        if (item.important[i] || spans[i].bytes > left) continue;
        std::memset(spans[i].data, 0, static_cast<size_t>(spans[i].bytes));
        lost.push_back({spans[i].at, spans[i].at + spans[i].bytes});
        left -= spans[i].bytes;
      }
      return lost;
    }
    void Forget(uint32_t process) {
      for (auto at = posted_.begin(); at != posted_.end();)
        at = at->second.process == process ? posted_.erase(at) : ++at;
      for (auto at = early_.begin(); at != early_.end();) at = at->second.from == process ? early_.erase(at) : ++at;
    }

    FakeRail* const rail_;
    const uint32_t self_;
    std::map<MessageId, Posted> posted_;
    std::map<MessageId, EarlyMessage> early_;
    Early early_event_;
    std::set<CallId> cancelled_;
  };

 public:
  // Returns the number of messages that a process has posted, or has received early.
  size_t kept(uint32_t process) const { return ends_[process]->kept(); }

 private:
  std::vector<std::unique_ptr<End>> ends_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<Item>> queues_;  // items in flight, by sender and receiver
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> confirmed_;
  std::set<std::pair<uint32_t, uint32_t>> silent_;
  std::function<void()> before_post_, before_fence_;
  bool holds_ = false;
  std::vector<Sent> held_;
  int carried_ = 0, lossy_ = 0, flushed_ = 0;
};

}  // namespace jaxcomm
