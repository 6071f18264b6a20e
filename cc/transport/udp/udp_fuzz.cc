// libFuzzer target: whatever packets a process that has the key sends, in whatever order, and whatever is posted and
// cancelled in between, nothing is stored outside the posted spans, nor of another call than theirs, every callback
// runs once, and what answers say of packets sent to it harms nobody. Packets without its tag are never let in.

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
#include "cc/transport/udp/assembler.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/send_queue.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kPeer = 1;
constexpr size_t kPiece = 64;
constexpr SipKey kKey = {1, 2, 3};

void Require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Next() { return size_ ? (--size_, *data_++) : 0; }
  uint32_t Number() {
    const uint32_t low = Next();
    return low < 250 ? low : low << 24 | Next() << 16 | Next() << 8 | Next();
  }
  void Read(std::byte* into, size_t size) {
    for (size_t i = 0; i < size; ++i) into[i] = static_cast<std::byte>(Next());
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
    while (!input_.empty() && !assembler_.at_end() && status_.ok()) {
      switch (input_.Next() % 8) {
        case 0:
          Post();
          break;
        case 1:
          Cancel();
          break;
        case 2:
          Send();
          break;
        case 3:
          Answer();
          break;
        case 4:
          Forge();
          break;
        default:
          Feed();
      }
      RunCallbacks();
    }
    for (Incoming& arrival : assembler_.TakeArrivals()) {
      inbox_.Fail(kPeer, InvalidArgument("over"), std::move(arrival));
    }
    inbox_.Fail(kPeer, InvalidArgument("over"), std::nullopt);
    for (const auto& message : queue_.Clear()) message->done(Status());
    RunCallbacks();
    for (const auto& request : requests_) {
      Require(request->cancelled || request->ends == 1);
      if (request->cancelled) Require(request->memory == request->when_cancelled);
    }
  }

 private:
  MessageId Id() {
    const uint8_t name = input_.Next();
    return {{1, name % 3u, 0, 0}, 1, 0, name / 3u % 4u, 0, 0};
  }

  // A packet that is nearly right; mutations would seldom find one.
  void Feed() {
    const uint8_t shape = input_.Next();
    PacketHeader header{shape % 3 ? PacketKind::kMessage : PacketKind::kOrdered,
                        (shape & 4) != 0,
                        number_++,
                        input_.Number() % 5,
                        0,
                        0};
    if (shape & 8) number_ = input_.Number();
    if (shape & 16) header.kind = PacketKind::kProbe;
    const uint32_t payload = input_.Number();
    header.bytes = header.kind == PacketKind::kProbe ? 0 : kHeaderBytes + payload;
    header.offset = static_cast<uint32_t>(kPiece * (input_.Next() % 6));
    if (shape & 32) header.offset = input_.Number();
    size_t size = header.offset < header.bytes ? std::min<size_t>(kPiece, header.bytes - header.offset) : 0;
    if ((shape & 192) == 192) size = input_.Next() % (kPiece + 1);
    std::byte packet[kPacketHeaderBytes + kPiece] = {};
    input_.Read(packet + kPacketHeaderBytes, std::min<size_t>(size, input_.Next()));
    if (header.offset == 0 && size >= kHeaderBytes && (shape & 64) == 0) {
      const bool is_message = header.kind == PacketKind::kMessage;
      const FrameType type = is_message ? FrameType::kMessage : payload ? FrameType::kNotice : FrameType::kGoodbye;
      EncodeHeader({type, payload, is_message ? Id() : MessageId()}, packet + kPacketHeaderBytes);
    }
    SealPacket(header, kKey, packet, kPacketHeaderBytes + size);
    const std::optional<PacketHeader> opened = OpenPacket(packet, kPacketHeaderBytes + size, kKey);
    Require(opened && opened->number == (header.number & ((uint64_t{1} << 56) - 1)) && opened->bytes == header.bytes);
    status_ = assembler_.Take(*opened, packet + kPacketHeaderBytes, size, 0);
    if (!assembler_.owes_answer_now()) return;
    std::byte bits[kAnswerBytes];
    assembler_.Answer(0, &header, bits);
  }

  void Forge() {
    std::byte packet[kPacketHeaderBytes + kPiece];
    const size_t size = input_.Next() % sizeof(packet);
    input_.Read(packet, size);
    Require(!OpenPacket(packet, size, kKey));
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
    std::optional<Refusal> refusal = inbox_.Post(id, {kPeer, spans, bytes, (shape & 8) != 0, done}, Status());
    if (refusal) {
      status_ = refusal->why;
      refusal->done(status_, nullptr);
    }
    if (assembler_.waits()) assembler_.Resume();
  }

  void Cancel() {
    const CallId call = Id().call;
    assembler_.Cancel(call);
    inbox_.Cancel(call);
    queue_.Cancel(call);
    for (const auto& request : requests_) {
      if (!(request->call == call) || request->ends > 0 || request->cancelled) continue;
      request->cancelled = true;
      request->when_cancelled = request->memory;
    }
  }

  // To the process.
  void Send() {
    const MessageId id = Id();
    const uint32_t bytes = input_.Number() % 1000;
    sent_.emplace_back(bytes);
    const std::vector<ConstSpan> spans = {{sent_.back().data(), bytes, 0}};
    if (bytes % 2) {
      queue_.PushCopy({FrameType::kMessage, bytes, id}, spans);
    } else {
      const auto ends = std::make_shared<int>(0);
      queue_.Push({FrameType::kMessage, bytes, id},
                  std::make_shared<Outgoing>(
                      Outgoing{id.call, spans, 1, Status(), [ends](const Status&) { Require((*ends)++ == 0); }}));
    }
    std::byte piece[kPiece];
    for (size_t count = input_.Next() % 8, size; count > 0 && queue_.Next(1, piece, &size); --count) {
      Require(size > 0 && size <= kPiece);
    }
  }

  void Answer() {
    if (input_.Next() % 4 == 0) queue_.Probe(1);
    std::byte bits[kAnswerBytes];
    std::fill(std::begin(bits), std::end(bits), static_cast<std::byte>(input_.Next()));
    PacketHeader header{PacketKind::kAnswer, false, ++answers_, input_.Number(), input_.Number(), 0};
    std::vector<std::shared_ptr<Outgoing>> done;
    const Result<Answered> answered = queue_.Take(header, bits, &done);
    if (!answered.ok()) return;
    Require(answered.value().lost <= answered.value().packets);
    for (const auto& message : done) message->done(Status());
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
  Assembler assembler_{kPeer, kPiece, &inbox_};
  SendQueue queue_{kPiece, 10 * kPiece};
  Status status_;
  uint64_t number_ = 0, answers_ = 0;
  std::vector<std::shared_ptr<Request>> requests_;
  std::vector<std::vector<std::byte>> sent_;
  volatile int sum_ = 0;
};

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxcomm::Fuzz(jaxcomm::Input(data, size)).Run();
  return 0;
}
