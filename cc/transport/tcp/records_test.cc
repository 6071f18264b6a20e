#include "cc/transport/tcp/records.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/transport/testing/recorded_events.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr CipherKey kKey = {1, 2, 3};
constexpr size_t kOverhead = kRecordHeaderBytes + 1 + kTagBytes;

// A writer and a reader of the same direction. The test carries the records from one to the other.
class RecordsTest : public testing::Test {
 protected:
  static constexpr uint64_t kFew = 3;  // number of records per key

  void SetUp() override {
    if (!Libcrypto::Get().ok()) GTEST_SKIP() << "this machine has no libcrypto";
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, up_), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, down_), 0);
    writer_ = std::make_unique<RecordWriter>(std::move(Sealer::Make(kKey).value()), kFew);
    reader_ = std::make_unique<RecordReader>(std::move(Opener::Make(kKey).value()), kFew);
  }
  void TearDown() override {
    for (const int socket : {up_[0], up_[1], down_[0], down_[1]}) {
      if (socket >= 0) close(socket);
    }
  }

  // Seals the text as one call of Send, and returns the bytes that the network sees.
  Bytes Sealed(const Bytes& text) {
    iovec vector{const_cast<std::byte*>(text.data()), text.size()};
    EXPECT_EQ(writer_->Send(up_[0], &vector, 1), static_cast<ssize_t>(text.size()));
    Bytes sealed(text.size() + 100 * kOverhead);
    sealed.resize(static_cast<size_t>(recv(up_[1], sealed.data(), sealed.size(), MSG_DONTWAIT)));
    return sealed;
  }
  void Deliver(const Bytes& bytes) {
    ASSERT_EQ(send(down_[0], bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
  }
  // Receives up to `most` bytes into parts of `part` bytes.
  ssize_t Receive(Bytes* text, size_t most = 100000, size_t part = 100000) {
    Bytes into(most);
    std::vector<iovec> vectors;
    for (size_t at = 0; at < most; at += part) vectors.push_back({into.data() + at, std::min(part, most - at)});
    const ssize_t bytes = reader_->Receive(down_[1], vectors.data(), vectors.size());
    if (bytes > 0) text->insert(text->end(), into.begin(), into.begin() + bytes);
    return bytes;
  }
  void ExpectRefused() {
    Bytes text;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Receive(&text), -1);
      EXPECT_EQ(errno, EBADMSG);
      EXPECT_TRUE(reader_->has_more());
    }
    EXPECT_TRUE(text.empty());
    reader_ = std::make_unique<RecordReader>(std::move(Opener::Make(kKey).value()), kFew);
    writer_ = std::make_unique<RecordWriter>(std::move(Sealer::Make(kKey).value()), kFew);
    Bytes ignored(100000);
    while (recv(down_[1], ignored.data(), ignored.size(), MSG_DONTWAIT) > 0) {
    }
  }

  int up_[2] = {-1, -1}, down_[2] = {-1, -1};
  std::unique_ptr<RecordWriter> writer_;
  std::unique_ptr<RecordReader> reader_;
};

TEST_F(RecordsTest, RecordsHaveTheFormOfTls) {
  const Bytes text(2 * kRecordBytes + 1000, std::byte{'x'});
  const Bytes sealed = Sealed(text);
  size_t at = 0;
  for (const size_t bytes : {kRecordBytes, kRecordBytes, size_t{1000}}) {
    ASSERT_GE(sealed.size(), at + bytes + kOverhead);
    const auto head = reinterpret_cast<const uint8_t*>(sealed.data()) + at;
    EXPECT_EQ(head[0], 23);  // application data
    EXPECT_EQ(head[1] << 8 | head[2], 0x303);
    EXPECT_EQ(static_cast<size_t>(head[3] << 8 | head[4]), bytes + 1 + kTagBytes);
    at += bytes + kOverhead;
  }
  EXPECT_EQ(at, sealed.size());
}

TEST_F(RecordsTest, NoTextIsOnTheNetwork) {
  const std::string pattern = "a gradient that nobody else may read";
  Bytes text(40000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::byte>(pattern[i % pattern.size()]);
  const Bytes sealed = Sealed(text);
  const std::string_view seen(reinterpret_cast<const char*>(sealed.data()), sealed.size());
  for (size_t at = 0; at + 4 <= pattern.size(); ++at) EXPECT_EQ(seen.find(pattern.substr(at, 4)), std::string::npos);
  EXPECT_NE(Sealed(text), sealed);  // equal texts do not look equal on the network
}

TEST_F(RecordsTest, RecordsSplitAtAnyByteAreOpened) {
  const Bytes text = Pattern(300, 1);
  for (size_t cut = 1; cut < text.size() + kOverhead; cut += 7) {
    const Bytes sealed = Sealed(text);
    Deliver({sealed.begin(), sealed.begin() + static_cast<ptrdiff_t>(cut)});
    Bytes received;
    EXPECT_EQ(Receive(&received), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_FALSE(reader_->has_more());
    Deliver({sealed.begin() + static_cast<ptrdiff_t>(cut), sealed.end()});
    EXPECT_EQ(Receive(&received), 300);
    EXPECT_EQ(received, text);
  }
}

TEST_F(RecordsTest, AnyPiecesArriveInOrderAcrossChangesOfTheKey) {
  std::mt19937 random(1);
  Bytes sent, received;
  for (int round = 0; round < 200; ++round) {
    const Bytes text = Pattern(1 + random() % 40000, random());
    const Bytes sealed = Sealed(text);
    sent.insert(sent.end(), text.begin(), text.end());
    for (size_t at = 0; at < sealed.size();) {
      const size_t part = std::min<size_t>(1 + random() % 30000, sealed.size() - at);
      Deliver({sealed.begin() + static_cast<ptrdiff_t>(at), sealed.begin() + static_cast<ptrdiff_t>(at + part)});
      at += part;
      while (Receive(&received, 1 + random() % 20000, 1 + random() % 5000) > 0 || reader_->has_more()) {
      }
      EXPECT_EQ(errno, EAGAIN);
    }
  }
  EXPECT_TRUE(received == sent);
}

TEST_F(RecordsTest, EveryChangedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * (40 + kOverhead); ++bit) {
    Bytes sealed = Sealed(Pattern(40, 1));
    sealed[bit / 8] ^= std::byte{1} << (bit % 8);
    sealed.resize(kRecordBytes + 2 * kOverhead);  // so that the record is complete even if its length field grows
    Deliver(sealed);
    ExpectRefused();
  }
}

TEST_F(RecordsTest, RepeatedMissingOrReorderedRecordsAreRefused) {
  const Bytes text = Pattern(40, 1);
  Bytes received;
  const Bytes first = Sealed(text);
  Deliver(first);
  EXPECT_EQ(Receive(&received), 40);
  Deliver(first);
  received.clear();
  ExpectRefused();
  Sealed(text);
  Deliver(Sealed(text));
  ExpectRefused();
}

TEST_F(RecordsTest, GenuineTextBeforeAForgedRecordIsReceived) {
  Bytes both = Sealed(Pattern(40, 1)), received;
  both.resize(2 * both.size());
  Deliver(both);
  EXPECT_EQ(Receive(&received), 40);
  EXPECT_EQ(received, Pattern(40, 1));
  EXPECT_TRUE(reader_->has_more());
  ExpectRefused();
}

TEST_F(RecordsTest, BytesThatTheKernelRefusesAreSentLater) {
  const Bytes text = Pattern(4 << 20, 1);
  Bytes received;
  size_t taken = 0;
  while (taken < text.size() || writer_->has_unsent()) {
    iovec vectors[] = {{const_cast<std::byte*>(text.data()) + taken, (text.size() - taken) / 2}, {}};
    vectors[1] = {static_cast<std::byte*>(vectors[0].iov_base) + vectors[0].iov_len,
                  text.size() - taken - vectors[0].iov_len};
    const ssize_t bytes = writer_->Send(down_[0], vectors, 2);
    ASSERT_TRUE(bytes >= 0 || errno == EAGAIN);
    taken += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
    while (Receive(&received) > 0) {
    }
    ASSERT_EQ(errno, EAGAIN);
  }
  EXPECT_TRUE(received == text);
  iovec vector{const_cast<std::byte*>(text.data()), text.size()};
  while (writer_->Send(down_[0], &vector, 1) >= 0) {  // the peer does not read
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(writer_->has_unsent());
}

TEST_F(RecordsTest, TheEndOfTheConnectionIsReported) {
  Deliver(Sealed(Pattern(40, 1)));
  close(std::exchange(down_[0], -1));
  Bytes received;
  EXPECT_EQ(Receive(&received), 40);
  EXPECT_EQ(Receive(&received), 0);
  iovec vector{received.data(), 40};
  shutdown(up_[0], SHUT_RDWR);
  EXPECT_EQ(writer_->Send(up_[0], &vector, 1), -1);
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace jaxcomm
