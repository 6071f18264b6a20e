#include "cc/transport/tcp/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr CallId kCall{7, 1, 2, 3};
constexpr uint32_t kPeer = 5;

MessageId Id(uint32_t index, CallId call = kCall) { return {call, 1, 0, index, 0}; }

Bytes Pattern(size_t size, int seed = 1) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i + i / 251);
  return bytes;
}

Bytes Frame(FrameType type, const MessageId& id, const Bytes& payload) {
  Bytes frame(kHeaderBytes);
  EncodeHeader({type, static_cast<uint32_t>(payload.size()), id}, frame.data());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

Bytes Message(uint32_t index, const Bytes& payload) { return Frame(FrameType::kMessage, Id(index), payload); }

Bytes Notice(const std::string& text) {
  Bytes payload(text.size());
  if (!text.empty()) std::memcpy(payload.data(), text.data(), text.size());
  return Frame(FrameType::kNotice, MessageId(), payload);
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class FrameReaderTest : public testing::Test, public Transport::Events {
 protected:
  void OnNotice(uint32_t process, std::string_view notice) override {
    EXPECT_EQ(process, kPeer);
    received_ += std::string(notice) + ";";
  }
  void OnPeerGone(uint32_t, const Status&) override {}

  void Post(const MessageId& id, std::vector<Span> spans, uint32_t process = kPeer, bool accepts_view = false) {
    int64_t bytes = 0;
    for (const Span& span : spans) bytes += span.bytes;
    const auto done = [this, id](const Status& status, std::shared_ptr<const std::byte> view) {
      received_ += (status.ok() ? "" : "!") + std::to_string(id.index) + (view ? "v;" : ";");
      view_ = view;
    };
    std::optional<Refusal> refusal = inbox_.Post(id, {process, std::move(spans), bytes, accepts_view, done}, gone_);
    refused_ = refusal ? refusal->why.message() : "";
  }

  // Feeds `step` bytes at a time until the reader waits or has read a goodbye.
  Status Feed(const Bytes& bytes, size_t step = SIZE_MAX) {
    for (size_t at = 0; at < bytes.size() && !reader_.waits() && !reader_.at_end();) {
      iovec vectors[FrameReader::kMaxVectors];
      const size_t count = reader_.Gather(vectors);
      size_t taken = 0;
      for (size_t i = 0; i < count; ++i) {
        const size_t size = std::min({vectors[i].iov_len, step - taken, bytes.size() - at});
        if (size) std::memcpy(vectors[i].iov_base, bytes.data() + at, size);
        at += size;
        taken += size;
      }
      Status status = reader_.Take(taken);
      if (!status.ok()) return status;
    }
    return Status();
  }

  std::string RecordedEvents() {
    while (!callbacks_.empty()) {
      callbacks_.Begin()();
      callbacks_.End();
    }
    return std::exchange(received_, "");
  }

  Callbacks callbacks_;
  Inbox inbox_{this, &callbacks_};
  FrameReader reader_{kPeer, &inbox_};
  Status gone_;
  std::string received_, refused_;
  std::shared_ptr<const std::byte> view_;
};

TEST_F(FrameReaderTest, HoweverTheBytesCome) {
  const Bytes large = Pattern(200000), small = Pattern(100, 9);
  for (const size_t step : {size_t{1}, size_t{7}, size_t{44}, size_t{4096}, size_t{70001}, SIZE_MAX}) {
    Bytes a(1000), b(199000), c(60), d(40);
    Post(Id(1), {{a.data(), 1000, 0}, {nullptr, 0, 1000}, {b.data(), 199000, 1000}});
    Post(Id(2), {{c.data(), 60, 4}, {d.data(), 40, 500}});  // spans with gaps between them
    Post(Id(3), {});
    ASSERT_TRUE(Feed(Notice("one") + Message(2, small) + Message(1, large) + Message(3, {}) + Notice(""), step).ok());
    EXPECT_EQ(RecordedEvents(), "one;2;1;3;;") << step;
    EXPECT_EQ(a + b, large) << step;
    EXPECT_EQ(c + d, small) << step;
  }
}

TEST_F(FrameReaderTest, AnEarlyMessageIsAViewOrIsCopied) {
  const Bytes sent = Pattern(100);
  ASSERT_TRUE(Feed(Message(1, sent) + Message(2, sent) + Message(3, sent)).ok());
  EXPECT_EQ(RecordedEvents(), "");
  Bytes into(100);
  Post(Id(1), {{into.data(), 60, 0}, {into.data() + 60, 40, 60}}, kPeer, /*accepts_view=*/true);
  EXPECT_EQ(RecordedEvents(), "1v;");
  EXPECT_EQ(Bytes(view_.get(), view_.get() + 100), sent);
  EXPECT_EQ(into, Bytes(100));
  Post(Id(2), {{into.data(), 60, 0}, {into.data() + 60, 40, 70}}, kPeer, /*accepts_view=*/true);
  EXPECT_EQ(RecordedEvents(), "2;");
  EXPECT_EQ(into, sent);
  into = Bytes(100);
  Post(Id(3), {{into.data(), 100, 0}});
  EXPECT_EQ(RecordedEvents(), "3;");
  EXPECT_EQ(into, sent);
}

TEST_F(FrameReaderTest, PostedWhileItComes) {
  const Bytes sent = Pattern(100), frame = Message(1, sent);
  Bytes into(100);
  ASSERT_TRUE(Feed(Bytes(frame.begin(), frame.begin() + 80)).ok());
  Post(Id(1), {{into.data(), 100, 0}});
  EXPECT_EQ(RecordedEvents(), "");
  ASSERT_TRUE(Feed(Bytes(frame.begin() + 80, frame.end())).ok());
  EXPECT_EQ(RecordedEvents(), "1;");
  EXPECT_EQ(into, sent);
}

TEST_F(FrameReaderTest, AfterCancelNothingIsStored) {
  const Bytes sent = Pattern(100000), frame = Message(1, sent);
  for (const size_t before : {size_t{10}, kHeaderBytes, size_t{70000}, frame.size() - 1}) {
    const CallId call{before, 0, 0, 0};
    Bytes renamed = Frame(FrameType::kMessage, Id(1, call), sent), into(sent.size());
    Post(Id(1, call), {{into.data(), 100000, 0}});
    ASSERT_TRUE(Feed(Bytes(renamed.begin(), renamed.begin() + before)).ok());
    const Bytes then = into;
    reader_.Cancel(call);
    inbox_.Cancel(call);
    ASSERT_TRUE(Feed(Bytes(renamed.begin() + before, renamed.end()) + Notice("on")).ok());
    EXPECT_EQ(RecordedEvents(), "on;") << before;
    EXPECT_EQ(into, then) << before;
  }
}

TEST_F(FrameReaderTest, InvalidFramesAreRefused) {
  Bytes into(10), garbage(kHeaderBytes, std::byte{0x20}), padded = Notice("");
  Post(Id(1), {{into.data(), 10, 0}});
  Post(Id(2), {{into.data(), 10, 0}}, /*process=*/6);
  padded[20] = std::byte{1};
  Bytes oversized(kHeaderBytes), long_notice(kHeaderBytes), loaded(kHeaderBytes);
  EncodeHeader({FrameType::kMessage, Transport::kMaxMessage + 1, Id(3)}, oversized.data());
  EncodeHeader({FrameType::kNotice, Transport::kMaxNotice + 1, MessageId()}, long_notice.data());
  EncodeHeader({FrameType::kGoodbye, 1, MessageId()}, loaded.data());
  const struct {
    Bytes bytes;
    std::string why;
  } rows[] = {
      {garbage, "a frame of the unknown type 0x20202020"},
      {padded, "a notice or goodbye that carries a message id"},
      {oversized, "a message of 262145 bytes, more than 262144"},
      {long_notice, "a notice of 20481 bytes, more than 20480"},
      {loaded, "a goodbye of 1 bytes, more than 0"},
      {Message(1, Pattern(9)),
       "segment 0 of message 1 from rank 1 to rank 0 of call 1.2.3 with 9 bytes where 10 are expected"},
      {Message(2, Pattern(10)),
       "segment 0 of message 2 from rank 1 to rank 0 of call 1.2.3, which only process 6 may send"},
      {Message(4, Pattern(1)) + Message(4, Pattern(1)),
       "segment 0 of message 4 from rank 1 to rank 0 of call 1.2.3 twice"},
  };
  for (const auto& row : rows) {
    reader_.~FrameReader();
    new (&reader_) FrameReader(kPeer, &inbox_);
    EXPECT_EQ(Feed(row.bytes).message(), row.why);
  }
  EXPECT_EQ(RecordedEvents(), "");
  EXPECT_EQ(into, Bytes(10));
}

TEST_F(FrameReaderTest, APostOfAnotherSizeRefusesTheMessage) {
  Bytes into(10);
  ASSERT_TRUE(Feed(Message(1, Pattern(9)) + Message(2, Pattern(10))).ok());
  Post(Id(1), {{into.data(), 10, 0}});
  EXPECT_EQ(refused_, "segment 0 of message 1 from rank 1 to rank 0 of call 1.2.3 with 9 bytes where 10 are expected");
  Post(Id(2), {{into.data(), 10, 0}}, /*process=*/6);
  EXPECT_EQ(refused_, "segment 0 of message 2 from rank 1 to rank 0 of call 1.2.3, which only process 6 may send");
  EXPECT_EQ(into, Bytes(10));
}

TEST_F(FrameReaderTest, PostedTwiceIsAnError) {
  Bytes into(10);
  Post(Id(1), {{into.data(), 10, 0}});
  Post(Id(1), {{into.data(), 10, 0}});
  EXPECT_EQ(RecordedEvents(), "!1;");
}

TEST_F(FrameReaderTest, TooMuchThatIsEarlyWaitsAndGoesOn) {
  const Bytes sent = Pattern(Transport::kMaxMessage);
  Bytes into(sent.size());
  uint32_t index = 0;
  while (!reader_.waits()) ASSERT_TRUE(Feed(Message(index++, sent)).ok());
  EXPECT_EQ(index, Transport::kMaxEarlyBytes / Transport::kMaxMessage);  // the last of these messages found no room
  ASSERT_TRUE(reader_.Resume().ok());
  EXPECT_TRUE(reader_.waits());
  Post(Id(0), {{into.data(), Transport::kMaxMessage, 0}});
  ASSERT_TRUE(reader_.Resume().ok());
  EXPECT_FALSE(reader_.waits());
  EXPECT_EQ(RecordedEvents(), "0;");
  EXPECT_EQ(into, sent);
}

TEST_F(FrameReaderTest, SmallEarlyMessagesAreBoundedToo) {
  uint32_t index = 0;
  for (;;) {  // calls the inbox without the reader, to save time
    Result<std::optional<Incoming>> arrival = inbox_.Begin(kPeer, Id(index++), 0);
    ASSERT_TRUE(arrival.ok());
    if (!arrival.value()) break;
    ASSERT_LT(index, 1000000u);
    inbox_.End(std::move(*arrival.value()));
  }
  ASSERT_TRUE(Feed(Message(index, {})).ok());
  EXPECT_TRUE(reader_.waits());
  inbox_.Cancel(kCall);
  ASSERT_TRUE(reader_.Resume().ok());
  EXPECT_FALSE(reader_.waits());
}

TEST_F(FrameReaderTest, MessagesOfAProcessThatIsGoneCanBeTaken) {
  Bytes into(10), half = Message(3, Pattern(10));
  half.pop_back();
  Post(Id(2), {{into.data(), 10, 0}});
  ASSERT_TRUE(Feed(Message(1, Pattern(10)) + half).ok());
  gone_ = InvalidArgument("gone");
  inbox_.Fail(kPeer, gone_, reader_.TakeArrival());
  EXPECT_EQ(RecordedEvents(), "!2;");
  Post(Id(1), {{into.data(), 10, 0}});
  Post(Id(3), {{into.data(), 10, 0}});
  EXPECT_EQ(RecordedEvents(), "1;!3;");
}

TEST_F(FrameReaderTest, NothingIsReadAfterTheGoodbye) {
  ASSERT_TRUE(Feed(Notice("a") + Frame(FrameType::kGoodbye, MessageId(), {}) + Notice("b")).ok());
  EXPECT_TRUE(reader_.at_end());
  EXPECT_EQ(RecordedEvents(), "a;");
}

}  // namespace
}  // namespace jaxcomm
