// libFuzzer target: whatever bytes a connection brings, in whatever pieces, and whatever is posted and cancelled in
// between, nothing is stored outside the posted spans, nor of another call than theirs, and every callback runs once.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/transport/callbacks.h"
#include "cc/transport/inbox.h"
#include "cc/transport/tcp/frame_reader.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kPeer = 1;

void Require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Next() { return size_ ? (--size_, *data_++) : 0; }
  size_t Read(void* into, size_t size) {
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

// Each span is an allocation of its own, which nothing may reach beyond.
struct Request {
  std::vector<std::vector<std::byte>> memory, when_cancelled;
  CallId call;
  int ends = 0;
  bool cancelled = false;
};

class Fuzz : public Transport::Events {
 public:
  explicit Fuzz(Input input) : input_(input) {}

  void OnNotice(uint32_t process, std::string_view notice) override {
    Require(process == kPeer && notice.size() <= Transport::kMaxNotice);
  }
  void OnPeerGone(uint32_t, const Status&) override { std::abort(); }

  void Run() {
    while (!input_.empty() && !reader_.at_end() && status_.ok()) {
      const uint8_t action = input_.Next();
      switch (action % 8) {
        case 0:
          Post();
          break;
        case 1:
          Cancel();
          break;
        case 2:  // a header, which mutations would seldom find
          Feed(Header(), kHeaderBytes);
          break;
        default: {
          std::byte bytes[256];
          const size_t size = input_.Read(bytes, action);
          Feed(bytes, size);
        }
      }
      RunCallbacks();
    }
    inbox_.Fail(kPeer, InvalidArgument("over"), reader_.TakeArrival());
    RunCallbacks();
    for (const auto& request : requests_) {
      Require(request->ends == (request->cancelled ? request->ends : 1));
      if (request->cancelled) Require(request->memory == request->when_cancelled);
    }
  }

 private:
  MessageId Id() {
    const uint8_t name = input_.Next();
    return {{1, name % 3u, 0, 0}, 1, 0, name / 3u % 4u, 0};
  }

  const std::byte* Header() {
    const FrameType types[] = {FrameType::kMessage, FrameType::kNotice, FrameType::kMessage, FrameType::kGoodbye};
    const FrameType type = types[input_.Next() % 4];
    const uint32_t bytes = type == FrameType::kGoodbye ? 0 : input_.Next();
    EncodeHeader({type, bytes, type == FrameType::kMessage ? Id() : MessageId()}, header_);
    return header_;
  }

  void Post() {
    const MessageId id = Id();
    if (inbox_.IsCancelled(id.call)) return;  // as the transport does
    auto request = std::make_shared<Request>();
    request->call = id.call;
    std::vector<Span> spans;
    int64_t bytes = 0, at = 0;
    const uint8_t shape = input_.Next();
    for (int i = 0; i < shape % 4; ++i) request->memory.emplace_back(input_.Next());
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
    std::optional<Refusal> refusal = inbox_.Post(id, {process, spans, bytes, (shape & 8) != 0, done}, gone);
    if (!refusal) return;
    Require(refusal->process == kPeer && !refusal->why.ok());
    status_ = refusal->why;
    refusal->done(status_, nullptr);
  }

  void Cancel() {
    const CallId call = Id().call;
    reader_.Cancel(call);
    inbox_.Cancel(call);
    for (const auto& request : requests_) {
      if (!(request->call == call) || request->ends > 0 || request->cancelled) continue;
      request->cancelled = true;
      request->when_cancelled = request->memory;
    }
    if (reader_.waits()) status_ = reader_.Resume();
  }

  void Feed(const std::byte* bytes, size_t size) {
    while (size > 0 && status_.ok() && !reader_.waits() && !reader_.at_end()) {
      iovec vectors[FrameReader::kMaxVectors];
      const size_t count = reader_.Gather(vectors);
      Require(count > 0 && count <= FrameReader::kMaxVectors);
      size_t taken = 0;
      for (size_t i = 0; i < count && taken < size; ++i) {
        const size_t part = std::min(vectors[i].iov_len, size - taken);
        if (part) std::memcpy(vectors[i].iov_base, bytes + taken, part);
        taken += part;
      }
      Require(taken > 0);
      bytes += taken;
      size -= taken;
      status_ = reader_.Take(taken);
    }
  }

  void RunCallbacks() {
    while (!callbacks_.empty()) {
      callbacks_.Begin()();
      callbacks_.End();
    }
  }

  Input input_;
  Callbacks callbacks_;
  Inbox inbox_{this, &callbacks_};
  FrameReader reader_{kPeer, &inbox_};
  Status status_;
  std::vector<std::shared_ptr<Request>> requests_;
  std::byte header_[kHeaderBytes];
  volatile int sum_ = 0;
};

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxcomm::Fuzz(jaxcomm::Input(data, size)).Run();
  return 0;
}
