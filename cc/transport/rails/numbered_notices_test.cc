#include "cc/transport/rails/numbered_notices.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(NumberedNoticesTest, EarlyNoticesAreBoundedAndComeOnceAndInOrder) {
  NumberedNotices from, to;
  std::vector<NumberedNotices::Bytes> all;
  constexpr size_t kNotices = 2000, kBytes = 16 << 10;
  for (size_t i = 0; i < kNotices; ++i) {
    all.push_back(from.Add('n', std::string(NumberedNotices::kHeaderBytes, ' ') + std::to_string(i) +
                                    std::string(kBytes - NumberedNotices::kHeaderBytes - 4, ' ')));
  }
  std::vector<std::string> taken;
  const auto take = [&taken](char, std::string_view text) { taken.emplace_back(text.substr(0, text.find(' '))); };
  size_t early = 1;
  Status status;
  for (; early < kNotices && status.ok(); ++early) status = to.Take(*all[early], take);
  EXPECT_EQ(status.message(), "more than 8 MiB of notices behind a missing one");
  EXPECT_NEAR(static_cast<double>(early), (8 << 20) / kBytes, 2);
  EXPECT_TRUE(to.Take(*all[1], take).ok());  // the notice is already kept, and needs no more room
  EXPECT_TRUE(taken.empty());
  // The connection is fenced. The notices that `to` has not taken arrive over another connection.
  for (const NumberedNotices::Bytes& notice : from.After(to.taken())) EXPECT_TRUE(to.Take(*notice, take).ok());
  ASSERT_EQ(taken.size(), kNotices);
  for (size_t i = 0; i < kNotices; ++i) EXPECT_EQ(taken[i], std::to_string(i));
  // The room for early notices is free again.
  for (size_t i = 0; i < 3 * kNotices; ++i) {
    const NumberedNotices::Bytes first = from.Add('n', std::string(kBytes, ' ')),
                                 second = from.Add('n', std::string(kBytes, ' '));
    EXPECT_TRUE(to.Take(*second, take).ok());
    EXPECT_TRUE(to.Take(*first, take).ok());
  }
}

}  // namespace
}  // namespace jaxcomm
