// Helps fuzzers of transports: reads the fuzzer's input, and posts and cancels messages as the input says.
//
//   FuzzedInbox fuzzed(input);                  // an Inbox for the bytes that the fuzzer feeds
//   Status status = fuzzed.Post();              // an error if the early message does not fit the Post
//   const CallId call = fuzzed.Id().call; ...; fuzzed.Cancel(call);
//   fuzzed.CheckEnds();                         // each callback ran once, or its call was cancelled
//
// Aborts if a callback runs twice or after its call was cancelled, or if the memory of a cancelled call changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/callbacks.h"
#include "cc/transport/inbox.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

inline void Require(bool condition) {
  if (!condition) std::abort();
}

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Next() { return size_ ? (--size_, *data_++) : 0; }
  uint32_t Number() {
    const uint32_t low = Next();
    return low < 250 ? low : low << 24 | Next() << 16 | Next() << 8 | Next();
  }
  size_t Read(std::byte* into, size_t size) {
    size = std::min(size, size_);
    if (size) std::memcpy(into, data_, size);
    data_ += size;
    size_ -= size;
    return size;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

class FuzzedInbox : public Transport::Events {
 public:
  static constexpr uint32_t kPeer = 1;

  explicit FuzzedInbox(FuzzInput* input) : input_(input) {}

  void OnNotice(uint32_t process, std::string_view notice) override {
    Require(process == kPeer && notice.size() <= Transport::kMaxNotice);
  }
  void OnPeerGone(uint32_t, const Status&) override { std::abort(); }

  Inbox& inbox() { return inbox_; }

  MessageId Id() {
    const uint8_t name = input_->Next();
    return {{1, name % 3u, 0, 0}, 1, 0, name / 3u % 4u, 0};
  }

  Status Post() {
    const MessageId id = Id();
    if (inbox_.IsCancelled(id.call)) return Status();  // SocketTransport does the same
    auto request = std::make_shared<Request>();
    request->call = id.call;
    std::vector<Span> spans;
    int64_t bytes = 0, at = 0;
    const uint8_t shape = input_->Next();
    for (int i = 0; i < shape % 4; ++i) request->memory.emplace_back(input_->Next());
    for (auto& memory : request->memory) {
      const auto size = static_cast<int64_t>(memory.size());
      spans.push_back({memory.data(), size, at});
      bytes += size;
      at += size + (shape >> 6);
    }
    requests_.push_back(request);
    const auto done = [this, request](const Status&, std::shared_ptr<const std::byte> view) {
      Require(!request->cancelled && request->ends++ == 0);
      size_t size = 0;
      for (const auto& memory : request->memory) size += memory.size();
      for (size_t i = 0; view && i < size; ++i) sum_ += static_cast<int>(view.get()[i]);
    };
    const uint32_t process = kPeer + (shape >> 4) % 4 / 3;
    const Status gone = process == kPeer ? Status() : InvalidArgument("never there");
    Posted posted{process, spans, bytes, (shape & 8) != 0, done};
    if (shape % 3 == 0) posted.loss = std::make_shared<Posted::Loss>(Posted::Loss{shape / 3, {}});
    std::optional<Refusal> refusal = inbox_.Post(id, std::move(posted), gone);
    if (!refusal) return Status();
    Require(refusal->process == kPeer && !refusal->why.ok());
    refusal->done(refusal->why, nullptr);
    return refusal->why;
  }

  void Cancel(const CallId& call) {
    inbox_.Cancel(call);
    for (const auto& request : requests_) {
      if (!(request->call == call) || request->ends > 0 || request->cancelled) continue;
      request->cancelled = true;
      request->when_cancelled = request->memory;
    }
  }

  void RunCallbacks() {
    while (!callbacks_.empty()) {
      callbacks_.Begin()();
      callbacks_.End();
    }
  }

  void CheckEnds() {
    for (const auto& request : requests_) {
      Require(request->cancelled || request->ends == 1);
      if (request->cancelled) Require(request->memory == request->when_cancelled);
    }
  }

 private:
  // Each span is a separate allocation, so that an access beyond the span can be detected.
  struct Request {
    std::vector<std::vector<std::byte>> memory, when_cancelled;
    CallId call;
    int ends = 0;
    bool cancelled = false;
  };

  FuzzInput* const input_;
  Callbacks callbacks_;
  std::vector<std::shared_ptr<Request>> requests_;
  Inbox inbox_{this, &callbacks_};
  volatile int sum_ = 0;
};

}  // namespace jaxcomm
