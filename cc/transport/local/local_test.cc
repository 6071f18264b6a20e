#include "cc/transport/local/local.h"

#include <string>
#include <vector>

#include "cc/transport/router.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

const CallId kCall{1, 2, 3, 4};

MessageId Message(uint32_t from, uint32_t to, uint32_t index = 0) { return {kCall, from, to, index, 0}; }

class LocalTest : public testing::Test {
 protected:
  void Send(Transport& transport, const std::vector<Receiver>& to, const std::string& text) {
    sent_text_ = text;
    const auto* bytes = reinterpret_cast<const std::byte*>(sent_text_.data());
    transport.Send(to, {{bytes, 3, 0}, {bytes + 3, 2, 8}}, [this](const Status& status) { sent_ += status.ok(); });
  }
  void Post(Transport& transport, const MessageId& id, int64_t second = 2) {
    auto* bytes = reinterpret_cast<std::byte*>(received_text_.data());
    transport.Post(0, id, {{bytes, 3, 0}, {bytes + 3, second, 8}}, true,
                   [this](const Status& status, std::shared_ptr<const std::byte> view) {
                     EXPECT_EQ(view, nullptr);
                     ++(status.ok() ? received_ : failed_);
                   });
  }

  std::string sent_text_, received_text_ = "-----";
  int sent_ = 0, received_ = 0, failed_ = 0;
  LocalTransport local_;
};

TEST_F(LocalTest, TheSideThatComesSecondCopies) {
  Send(local_, {{0, Message(0, 1)}}, "hello");
  EXPECT_EQ(sent_, 0);
  Post(local_, Message(0, 1));
  EXPECT_EQ(sent_ + received_, 2);
  EXPECT_EQ(received_text_, "hello");
  Post(local_, Message(1, 0));
  Send(local_, {{0, Message(1, 0)}}, "again");
  EXPECT_EQ(received_text_, "again");
}

TEST_F(LocalTest, SeveralReceiversAreOneMessage) {
  Router router({&local_}, {0});
  Post(router, Message(0, 2));
  Send(router, {{0, Message(0, 1)}, {0, Message(0, 2)}}, "hello");
  EXPECT_EQ(sent_, 0);
  Post(router, Message(0, 1));
  EXPECT_EQ(sent_, 1);
  EXPECT_EQ(received_, 2);
}

TEST_F(LocalTest, SizesMustAgree) {
  Post(local_, Message(0, 1), 1);
  Send(local_, {{0, Message(0, 1)}}, "hello");
  EXPECT_EQ(failed_, 1);
}

TEST_F(LocalTest, ACancelledMessageNeverComes) {
  Post(local_, Message(0, 1));
  Send(local_, {{0, Message(1, 0)}}, "hello");
  local_.Cancel(kCall);
  Send(local_, {{0, Message(0, 1)}}, "again");
  Post(local_, Message(1, 0));
  EXPECT_EQ(sent_ + received_ + failed_, 0);
  EXPECT_EQ(received_text_, "-----");
}

// The callback of a message runs once, even if the message goes over two transports.
TEST_F(LocalTest, ARouterSendsToEachProcessOverItsTransport) {
  LocalTransport other;
  Router router({&local_, &other}, {0, 1});
  Send(router, {{0, Message(0, 1)}, {1, Message(0, 2)}}, "hello");
  Post(local_, Message(0, 1));
  EXPECT_EQ(sent_, 0);
  Post(other, Message(0, 2));
  EXPECT_EQ(sent_, 1);
  EXPECT_EQ(received_, 2);
}

}  // namespace
}  // namespace jaxcomm
