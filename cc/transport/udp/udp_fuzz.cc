// libFuzzer target: a process that has the key sends arbitrary packets in any order, while receives are posted and
// cancelled. No byte may be stored outside the posted spans, or in the spans of another call. Every callback must run
// once. False acknowledgements must do no harm. Packets without a valid tag must never be accepted.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/transport/testing/inbox_fuzz.h"
#include "cc/transport/udp/assembler.h"
#include "cc/transport/udp/lossy_frame.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/send_queue.h"
#include "cc/transport/udp/testing/fuzzed_packets.h"

namespace jaxcomm {
namespace {

constexpr size_t kFragment = 64, kPriorities = 3;
constexpr SipKey kKey = {1, 2, 3};

class Fuzz {
 public:
  explicit Fuzz(FuzzInput input) : input_(input) {}

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
      fuzzed_.RunCallbacks();
    }
    for (Incoming& arrival : assembler_.TakeArrivals()) {
      fuzzed_.inbox().Fail(FuzzedInbox::kPeer, InvalidArgument("over"), std::move(arrival));
    }
    fuzzed_.inbox().Fail(FuzzedInbox::kPeer, InvalidArgument("over"), std::nullopt);
    for (const auto& message : queue_.Clear()) message->done(Status());
    fuzzed_.RunCallbacks();
    fuzzed_.CheckEnds();
  }

 private:
  // Delivers a nearly valid packet. Mutations of the input would seldom make such a packet.
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
    if (shape % 5 == 0) header.kind = PacketKind::kLossy;
    header.sent = static_cast<uint16_t>(input_.Next() % 8);
    Lossy lossy;
    for (uint8_t spans = header.kind == PacketKind::kLossy ? input_.Next() % 5 : 0; spans > 0; --spans) {
      lossy.important.push_back(input_.Next() % 2 == 0);
    }
    const bool is_lossy = header.kind == PacketKind::kLossy;
    const size_t front = is_lossy ? LossyFrontBytes(lossy.important.size()) : kHeaderBytes;
    const uint32_t payload = input_.Number();
    header.bytes = header.kind == PacketKind::kProbe ? 0 : static_cast<uint32_t>(front) + payload;
    header.offset = static_cast<uint32_t>(kFragment * (input_.Next() % 6));
    if (shape & 32) header.offset = input_.Number();
    size_t size = header.offset < header.bytes ? std::min<size_t>(kFragment, header.bytes - header.offset) : 0;
    if ((shape & 192) == 192) size = input_.Next() % (kFragment + 1);
    std::byte packet[kPacketHeaderBytes + kFragment] = {};
    input_.Read(packet + kPacketHeaderBytes, std::min<size_t>(size, input_.Next()));
    if (is_lossy && header.offset == 0 && size >= front && (shape & 64) == 0) {
      lossy.reliable = static_cast<uint32_t>(front) + input_.Next();
      lossy.may_lose = input_.Next();
      const Header frame{FrameType::kMessage, payload, fuzzed_.Id()};
      const std::vector<std::byte> bytes = EncodeLossy(frame, lossy);
      std::copy(bytes.begin(), bytes.end(), packet + kPacketHeaderBytes);
    } else if (header.offset == 0 && size >= kHeaderBytes && (shape & 64) == 0) {
      const bool is_message = header.kind == PacketKind::kMessage;
      const FrameType type = is_message ? FrameType::kMessage : payload ? FrameType::kNotice : FrameType::kGoodbye;
      EncodeHeader({type, payload, is_message ? fuzzed_.Id() : MessageId()}, packet + kPacketHeaderBytes);
    }
    ++fuzzed_packets;
    SealPacket(header, kKey, packet, kPacketHeaderBytes + size);
    const std::optional<PacketHeader> opened = OpenPacket(packet, kPacketHeaderBytes + size, kKey);
    Require(opened && opened->number == (header.number & ((uint64_t{1} << 56) - 1)) && opened->sent == header.sent &&
            opened->bytes == header.bytes);
    status_ = assembler_.Take(*opened, packet + kPacketHeaderBytes, size, 0);
    if (!assembler_.owes_answer_now()) return;
    std::byte bits[kAnswerBytes];
    assembler_.Answer(0, &header, bits);
  }

  void Forge() {
    std::byte packet[kPacketHeaderBytes + kFragment] = {};
    const size_t size = input_.Next() % sizeof(packet);
    input_.Read(packet, size);
    ++fuzzed_packets;
    Require(!OpenPacket(packet, size, kKey));
  }

  void Post() {
    status_ = fuzzed_.Post();
    if (assembler_.waits()) assembler_.Resume();
  }

  void Cancel() {
    const CallId call = fuzzed_.Id().call;
    assembler_.Cancel(call);
    fuzzed_.Cancel(call);
    queue_.Cancel(call);
  }

  // Queues a message to the process, and sends some of its packets.
  void Send() {
    const MessageId id = fuzzed_.Id();
    const uint32_t bytes = input_.Number() % 1000;
    const uint32_t priority = bytes / 18 % (kPriorities + 1);
    sent_.emplace_back(bytes);
    const std::vector<ConstSpan> spans = {{sent_.back().data(), bytes, 0}};
    const auto ends = std::make_shared<int>(0);
    const auto outgoing = std::make_shared<Outgoing>(
        Outgoing{id.call, spans, 1, Status(), [ends](const Status&) { Require((*ends)++ == 0); }});
    if (bytes % 3 == 0) {
      queue_.PushLossy(id, {bytes % 9 == 0}, LossLimit(input_.Next()), outgoing, priority);
    } else if (bytes % 2) {
      queue_.PushCopy({FrameType::kMessage, bytes, id}, spans, priority);
    } else {
      queue_.Push({FrameType::kMessage, bytes, id}, outgoing, priority);
    }
    std::byte fragment[kFragment];
    for (size_t count = input_.Next() % 8, size; count > 0 && queue_.Next(1, fragment, &size); --count) {
      Require(size > 0 && size <= kFragment);
    }
  }

  void Answer() {
    if (input_.Next() % 4 == 0) queue_.Probe(1, /*path=*/0, queue_.LastPriority());
    std::byte bits[kAnswerBytes];
    std::fill(std::begin(bits), std::end(bits), static_cast<std::byte>(input_.Next()));
    PacketHeader header{PacketKind::kAnswer, input_.Next() % 8 == 0, ++answers_, input_.Number(), input_.Number(), 0};
    std::vector<std::shared_ptr<Outgoing>> done;
    ++fuzzed_packets;
    const Result<Answered> answered = queue_.Take(header, bits, &done);
    if (!answered.ok()) return;
    Require(answered.value().lost <= answered.value().packets);
    for (const auto& message : done) message->done(Status());
  }

  FuzzInput input_;
  FuzzedInbox fuzzed_{&input_};
  Assembler assembler_{FuzzedInbox::kPeer, kFragment, &fuzzed_.inbox()};
  SendQueue queue_{kFragment, 10 * kFragment, /*paths=*/1, kPriorities};
  Status status_;
  uint64_t number_ = 0, answers_ = 0;
  std::vector<std::vector<std::byte>> sent_;
};

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxcomm::Fuzz(jaxcomm::FuzzInput(data, size)).Run();
  return 0;
}
