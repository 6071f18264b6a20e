#include "cc/executor/messages/notices.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

const CallId kCall{0x1122334455667788, 9, 3, 70000};

TEST(Notices, ArriveAsTheyWereSent) {
  const auto arrival =
      DecodeNotice(Encode(Arrival{kCall, 5, 50, 0xFEDCBA9876543210, "psum over 'data'", /*waits=*/true}));
  ASSERT_TRUE(arrival);
  const auto& found = std::get<Arrival>(*arrival);
  EXPECT_TRUE(found.call == kCall);
  EXPECT_EQ(found.rank, 5u);
  EXPECT_EQ(found.device, 50u);
  EXPECT_EQ(found.fingerprint, 0xFEDCBA9876543210);
  EXPECT_EQ(found.text, "psum over 'data'");
  EXPECT_TRUE(found.waits);
  for (const auto outcome : {Trial::Outcome::kOpen, Trial::Outcome::kKept, Trial::Outcome::kDropped}) {
    for (const std::optional<uint32_t> next : {std::optional<uint32_t>(), {0}, {70000}}) {
      const auto decided = DecodeNotice(Encode(Decided{kCall, {70000, next, 3, outcome}}));
      ASSERT_TRUE(decided);
      EXPECT_TRUE(std::get<Decided>(*decided).call == kCall);
      const ScheduleSelector::Decision& decision = std::get<Decided>(*decided).decision;
      EXPECT_EQ(decision.schedule, 70000u);
      EXPECT_EQ(decision.next, next);
      EXPECT_EQ(decision.launches, 3u);
      EXPECT_EQ(decision.outcome, outcome);
    }
  }
  const auto failure = DecodeNotice(
      Encode(Failure{kCall, Status(Code::kDeadlineExceeded, "late", "{\"missing\":[3]}"), 0x99AABBCCDDEEFF00}));
  ASSERT_TRUE(failure);
  EXPECT_TRUE(std::get<Failure>(*failure).call == kCall);
  EXPECT_EQ(std::get<Failure>(*failure).why.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(std::get<Failure>(*failure).why.message(), "late");
  EXPECT_EQ(std::get<Failure>(*failure).why.record(), "{\"missing\":[3]}");
  EXPECT_FALSE(std::get<Failure>(*failure).gone);
  for (const bool has_left : {false, true}) {
    const auto lacking =
        DecodeNotice(Encode(Failure{kCall, InvalidArgument("gone"), 0, Failure::Gone{70000, has_left, "it died"}}));
    ASSERT_TRUE(lacking && std::get<Failure>(*lacking).gone);
    EXPECT_EQ(std::get<Failure>(*lacking).gone->process, 70000u);
    EXPECT_EQ(std::get<Failure>(*lacking).gone->has_left, has_left);
    EXPECT_EQ(std::get<Failure>(*lacking).gone->why, "it died");
    EXPECT_EQ(std::get<Failure>(*lacking).why.message(), "gone");
  }
  EXPECT_EQ(std::get<Failure>(*failure).step, 0x99AABBCCDDEEFF00);
}

TEST(Notices, LongTextIsCutAndEveryNoticeFitsATransport) {
  const std::string text(10000, 'x');
  const std::string arrival = Encode(Arrival{kCall, 0, 0, 0, text});
  EXPECT_LE(arrival.size(), Transport::kMaxNotice);
  EXPECT_EQ(std::get<Arrival>(*DecodeNotice(arrival)).text.size(), Arrival::kMaxText);
  for (const size_t record : {Failure::kMaxRecord, Failure::kMaxRecord + 1}) {
    const std::string failure =
        Encode(Failure{kCall, InvalidArgument(text, std::string(record, 'r')), 0, Failure::Gone{1, false, text}});
    EXPECT_LE(failure.size(), Transport::kMaxNotice);
    const Failure decoded = std::get<Failure>(*DecodeNotice(failure));
    EXPECT_EQ(decoded.gone->why.size(), Failure::Gone::kMaxText);
    const Status& why = decoded.why;
    EXPECT_EQ(why.message().size(), Failure::kMaxText);
    EXPECT_EQ(why.record().size(), record > Failure::kMaxRecord ? 0 : record);  // a record is kept whole or left out
  }
}

TEST(Notices, ALongTextIsCutBeforeALetter) {
  for (size_t before = 0; before < 4; ++before) {
    for (const std::string letter : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
      std::string text(before, 'x');
      while (text.size() < 3000) text += letter;
      const std::string at = std::get<Arrival>(*DecodeNotice(Encode(Arrival{kCall, 0, 0, 0, text}))).text;
      const std::string why =
          std::get<Failure>(*DecodeNotice(Encode(Failure{kCall, InvalidArgument(text), 0}))).why.message();
      for (const auto& [cut, most] : {std::pair{at, Arrival::kMaxText}, std::pair{why, Failure::kMaxText}}) {
        EXPECT_LE(cut.size(), most);
        EXPECT_GT(cut.size(), most - letter.size());
        EXPECT_EQ(cut, text.substr(0, cut.size()));
        EXPECT_EQ((cut.size() - before) % letter.size(), 0u);
      }
    }
  }
}

TEST(Notices, WhatIsMalformedIsNone) {
  const std::string arrival = Encode(Arrival{kCall, 5, 50, 1, ""}),
                    failure = Encode(Failure{kCall, InvalidArgument(""), 0}), decided = Encode(Decided{kCall, {1}});
  for (const std::string& whole : {arrival, failure, decided}) {
    for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(DecodeNotice(whole.substr(0, size))) << size;
  }
  EXPECT_FALSE(DecodeNotice(arrival + std::string(Arrival::kMaxText + 1, 'x')));
  for (const char code : {'\0', '\5', '\xFF'}) {
    std::string broken = failure;
    broken[broken.size() - 11] = code;
    EXPECT_FALSE(DecodeNotice(broken));
  }
  EXPECT_FALSE(DecodeNotice(failure + std::string(Failure::kMaxRecord + 1, 'x')));
  std::string broken = failure;
  broken[broken.size() - 2] = '\1';  // the length says that a text of one byte follows, but the text is missing
  EXPECT_FALSE(DecodeNotice(broken));
  broken = failure;
  broken[22] = '\1';  // names a process although no process has ended
  EXPECT_FALSE(DecodeNotice(broken));
  broken = arrival;
  broken[broken.size() - 1] = '\2';  // `waits` is neither 0 nor 1
  EXPECT_FALSE(DecodeNotice(broken));
  EXPECT_FALSE(DecodeNotice(decided + "x"));
  for (const auto& [at, byte] : {std::pair<size_t, char>{1, '\3'}, {9, '\1'}, {10, '\1'}, {10, '\2'}}) {
    broken = decided;
    broken[broken.size() - at] = byte;  // in turn: outcome, `next` without has_next, a valid and an invalid has_next
    EXPECT_EQ(DecodeNotice(broken).has_value(), at == 10 && byte == '\1');
  }
  for (const char which : {'\0', '\4'}) EXPECT_FALSE(DecodeNotice(which + arrival.substr(1)));
}

}  // namespace
}  // namespace jaxcomm
