// libFuzzer target: the lines between two processes lose, repeat, reorder and change packets. A stranger without the
// processes' key adds other packets. Every message must arrive once. Every message must be complete, except that a
// lossy message may lose the allowed number of bytes.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/transport/callbacks.h"
#include "cc/transport/inbox.h"
#include "cc/transport/testing/inbox_fuzz.h"
#include "cc/transport/udp/assembler.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/send_queue.h"
#include "cc/transport/udp/testing/fuzzed_packets.h"

namespace jaxcomm {
namespace {

constexpr size_t kFragment = 64, kMaxMessages = 64, kMaxCarried = 300;
constexpr int64_t kWindow = 40 * kFragment;
constexpr uint32_t kSender = 0, kReceiver = 1;
constexpr uint8_t kPaths = 3, kPriorities = 3;
constexpr int kMostRounds = 200;  // maximum number of exchanges of packets and acknowledgements in Settle

using Packet = std::vector<std::byte>;

// The keys of a path, for packets from the sender and for packets to the sender.
SipKey UpKey(uint8_t path) { return {1, 2, 3, path}; }
SipKey DownKey(uint8_t path) { return {4, 5, 6, path}; }

class Fuzz : public Transport::Events {
 public:
  explicit Fuzz(FuzzInput input) : input_(input) {}

  void OnNotice(uint32_t process, std::string_view notice) override {
    Require(process == kSender && notice.size() == 1 && static_cast<uint8_t>(notice[0]) == notices_come_++);
  }
  void OnPeerGone(uint32_t, const Status&) override { std::abort(); }

  void Run() {
    while (!input_.empty()) {
      switch (const uint8_t what = input_.Next(); what % 8) {
        case 0:
          Push(what / 8);
          break;
        case 1:
          Post(what / 8);
          break;
        case 2:
          Answer(what / 8 % kPaths, input_.Next() % kPaths);
          break;
        case 3:
          Forge();
          break;
        case 4:
          if (what & 8) Probe(what / 16 % kPaths);
          if (what & 128) GiveUp(what / 16 % kPaths);
          break;
        case 5:
          for (int count = what / 8; count > 0; --count) Send(static_cast<uint8_t>(count) % kPaths);
          break;
        case 6:
          Bring(what / 8);
          break;
        default:
          Bring(input_.Next());
      }
      RunCallbacks();
    }
    Settle();
    for (const auto& message : messages_) message->Check();
    Require(notices_come_ == notices_);
  }

 private:
  struct Message {
    std::vector<std::byte> data, into;
    bool is_lossy = false, is_important = false, is_posted = false, is_sent = false;
    int64_t may_lose = 0;
    std::shared_ptr<Posted::Loss> loss;
    int come = 0, gone = 0;

    void Check() {
      Require(come == 1 && gone == 1);
      int64_t lost = 0;
      for (const ByteRange& range : loss ? loss->lost : std::vector<ByteRange>()) {
        lost += range.end - range.begin;
        std::fill(data.begin() + range.begin, data.begin() + range.end, std::byte{0});
      }
      Require(lost <= (is_important ? 0 : may_lose) && into == data);
    }
  };

  static MessageId Id(size_t index) { return {{1, 1, 1, 0}, kSender, kReceiver, static_cast<uint32_t>(index), 0}; }

  void Push(uint8_t shape) {
    if (shape % 8 == 7) {
      const auto text = static_cast<std::byte>(notices_);
      if (notices_ == 255) return;
      ++notices_;
      return queue_.PushCopy({FrameType::kNotice, 1, MessageId()}, {{&text, 1, 0}});
    }
    if (messages_.size() == kMaxMessages) return;
    auto message = std::make_unique<Message>();
    message->data.resize(static_cast<size_t>(input_.Next()) * (shape & 16 ? 8 : 1));
    for (size_t i = 0; i < message->data.size(); ++i) message->data[i] = static_cast<std::byte>(i % 251 + 1);
    message->into.resize(message->data.size());
    message->is_lossy = shape % 8 < 3;
    message->is_important = message->is_lossy && shape % 8 == 0;
    message->may_lose = message->is_lossy ? static_cast<int64_t>(message->data.size() / 4) : 0;
    messages_.push_back(std::move(message));
    if (messages_.back()->is_lossy || shape & 8) Post(static_cast<uint8_t>(messages_.size() - 1));
    Message& pushed = *messages_.back();
    const auto bytes = static_cast<uint32_t>(pushed.data.size());
    const std::vector<ConstSpan> spans = {{pushed.data.data(), bytes, 0}};
    const MessageId id = Id(messages_.size() - 1);
    const uint32_t priority = shape / 32 % (kPriorities + 1);
    const auto outgoing =
        std::make_shared<Outgoing>(Outgoing{id.call, spans, 1, Status(), [&pushed](const Status&) { ++pushed.gone; }});
    if (pushed.is_lossy) {
      queue_.PushLossy(id, {pushed.is_important}, LossLimit(pushed.may_lose), outgoing, priority);
    } else if (shape % 8 == 3) {
      queue_.PushCopy({FrameType::kMessage, bytes, id}, spans, priority);
      ++pushed.gone;
    } else {
      queue_.Push({FrameType::kMessage, bytes, id}, outgoing, priority);
    }
  }

  void Post(size_t index) {
    if (index >= messages_.size() || messages_[index]->is_posted) return;
    Message& message = *messages_[index];
    message.is_posted = true;
    const auto bytes = static_cast<int64_t>(message.into.size());
    Posted posted{kSender, {{message.into.data(), bytes, 0}}, bytes, /*accepts_view=*/false, nullptr};
    posted.done = [&message](const Status& status, const auto&) { Require(status.ok() && ++message.come == 1); };
    if (message.is_lossy)
      posted.loss = message.loss = std::make_shared<Posted::Loss>(Posted::Loss{message.may_lose, {}});
    Require(!inbox_.Post(Id(index), std::move(posted), Status()));
    if (assembler_.waits()) assembler_.Resume();
  }

  void Send(uint8_t path) {
    Packet packet(kPacketHeaderBytes + kFragment);
    size_t size;
    const std::optional<PacketHeader> header = queue_.Next(++now_, packet.data() + kPacketHeaderBytes, &size, path);
    if (!header) return;
    packet.resize(kPacketHeaderBytes + size);
    Carry(path, *header, std::move(packet));
  }

  void Probe(uint8_t path) {
    const uint32_t priority = queue_.OwedProbe().value_or(queue_.LastPriority(path));
    Carry(path, queue_.Probe(++now_, path, priority), {});
  }

  void Carry(uint8_t path, const PacketHeader& header, Packet packet) {
    packet.resize(std::max(packet.size(), kPacketHeaderBytes));
    SealPacket(header, UpKey(path), packet.data(), packet.size());
    Keep(std::move(packet));
  }

  void GiveUp(uint8_t path) {
    std::vector<std::shared_ptr<Outgoing>> done;
    queue_.GiveUp(path, &done);
    for (const auto& message : done) message->done(Status());
  }

  // Acknowledges the packets of a path. The acknowledgement is sent over the path `over`.
  void Answer(uint8_t path, uint8_t over) {
    if (!assembler_.owes_answer(path)) return;
    PacketHeader header;
    std::byte bits[kAnswerBytes];
    assembler_.Answer(now_, &header, bits, path);
    Packet packet(kPacketHeaderBytes + kAnswerBytes);
    std::copy(std::begin(bits), std::end(bits), packet.begin() + kPacketHeaderBytes);
    SealPacket(header, DownKey(over), packet.data(), packet.size());
    Keep(std::move(packet));
  }

  void Keep(Packet packet) {
    carried_.push_back(std::move(packet));
    if (carried_.size() > kMaxCarried) carried_.pop_front();
  }

  // Delivers a packet that the line has carried: the packet `back` places before the newest packet.
  void Bring(size_t back) {
    if (back < carried_.size()) Bring(Packet(carried_[carried_.size() - 1 - back]));
  }

  void Bring(const Packet& packet) {
    ++fuzzed_packets;
    const std::byte* const bytes = packet.data() + kPacketHeaderBytes;
    const size_t size = packet.size() - kPacketHeaderBytes;
    int opened = 0;
    for (uint8_t path = 0; path < kPaths; ++path) {
      if (const auto header = OpenPacket(packet.data(), packet.size(), UpKey(path))) {
        ++opened;
        Require(assembler_.Take(*header, bytes, size, now_, path).ok());
      }
      if (const auto answer = OpenPacket(packet.data(), packet.size(), DownKey(path))) {
        ++opened;
        Require(answer->kind == PacketKind::kAnswer && size == kAnswerBytes && answer->sent < kPaths);
        std::vector<std::shared_ptr<Outgoing>> done;
        Require(queue_.Take(*answer, bytes, &done, answer->sent).ok());
        for (const auto& message : done) message->done(Status());
      }
    }
    Require(opened == 1);
  }

  // Changes a packet that the line has carried, as a stranger without the key would.
  void Forge() {
    if (carried_.empty()) return;
    Packet packet = carried_[input_.Next() % carried_.size()];
    const size_t at = input_.Next() % packet.size();
    const std::byte before = packet[at];
    packet[at] ^= static_cast<std::byte>(input_.Next() | 1);
    if (input_.Next() % 4 == 0) packet.resize(at);
    ++fuzzed_packets;
    Require(Opened(packet) == 0);
    if (packet.size() > at) {
      packet[at] = before;
      Require(Opened(packet) <= 1);
    }
  }

  // Returns the number of keys that the packet's tag matches.
  static int Opened(const Packet& packet) {
    int opened = 0;
    for (uint8_t path = 0; path < kPaths; ++path) {
      for (const SipKey& key : {UpKey(path), DownKey(path)}) {
        opened += OpenPacket(packet.data(), packet.size(), key).has_value();
      }
    }
    return opened;
  }

  // From now on the lines deliver every packet at once.
  void Settle() {
    for (size_t i = 0; i < messages_.size(); ++i) Post(i);
    RunCallbacks();
    for (int round = 0; !queue_.empty() || queue_.OwedProbe(); ++round) {
      Require(round < kMostRounds);
      carried_.clear();
      for (uint8_t path = 0; path < kPaths; ++path) {
        while (queue_.has_next(path) && carried_.size() < kMaxCarried / 2) Send(path);
        Probe(path);
      }
      for (const Packet& packet : std::exchange(carried_, {})) Bring(packet);
      for (uint8_t path = 0; path < kPaths; ++path) Answer(path, path);
      for (const Packet& packet : std::exchange(carried_, {})) Bring(packet);
      RunCallbacks();
    }
  }

  void RunCallbacks() {
    while (!callbacks_.empty()) {
      callbacks_.Begin()();
      callbacks_.End();
    }
  }

  FuzzInput input_;
  std::vector<std::unique_ptr<Message>> messages_;
  Callbacks callbacks_;
  Inbox inbox_{this, &callbacks_};
  Assembler assembler_{kSender, kFragment, &inbox_, kPaths};
  SendQueue queue_{kFragment, kWindow, kPaths, kPriorities};
  std::deque<Packet> carried_;
  int64_t now_ = 0;
  uint8_t notices_ = 0, notices_come_ = 0;
};

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxcomm::Fuzz(jaxcomm::FuzzInput(data, size)).Run();
  return 0;
}
