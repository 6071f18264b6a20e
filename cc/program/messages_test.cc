#include "cc/program/messages.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Words = std::vector<uint32_t>;

// Two ranks exchange their only chunk. Both add rank 0's bytes first, then rank 1's bytes.
Words Exchange(uint32_t rank) {
  const uint32_t other = 1 - rank;
  return {Messages::kMagic, Messages::kVersion, 2, rank, 1, 1, 1, 1, 1, 1, other, 0, other, 0, 1, 0, 2, rank, other};
}

std::shared_ptr<const Messages> Decoded(const Words& words) {
  Result<Messages> found = Messages::Decode(words.data(), words.size());
  EXPECT_TRUE(found.ok()) << found.status().message();
  return std::make_shared<const Messages>(found.value());
}

std::string Refusal(const Words& words) {
  Result<Messages> found = Messages::Decode(words.data(), words.size());
  EXPECT_FALSE(found.ok());
  return found.ok() ? "" : found.status().message();
}

TEST(Messages, DecodesWhatAPlanCompiles) {
  const auto found = Decoded(Exchange(1));
  EXPECT_EQ(found->ranks(), 2u);
  EXPECT_EQ(found->rank(), 1u);
  EXPECT_EQ(found->slots(), 1u);
  ASSERT_EQ(found->rounds().size(), 1u);
  EXPECT_EQ(found->rounds()[0].sends[0].peer, 0u);
  EXPECT_EQ(found->rounds()[0].receives[0].place, 1u);
  EXPECT_EQ(found->rounds()[0].sums[0].places, (Words{1, 0}));
}

TEST(Messages, RefusesEveryPrefixAndEveryWordOutOfBounds) {
  const Words whole = Exchange(0);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(Refusal(Words(whole.begin(), whole.begin() + static_cast<long>(size))), "");
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    Words broken = whole;
    broken[at] = 0xFFFFFFFF;
    EXPECT_NE(Refusal(broken), "") << at;
  }
  Words longer = whole;
  longer.push_back(0);
  EXPECT_EQ(Refusal(longer), "messages word 19: more words follow the last round");
  Words to_itself = whole;
  to_itself[10] = 0;
  EXPECT_EQ(Refusal(to_itself), "messages word 11: a message goes to its own rank");
}

}  // namespace
}  // namespace jaxcomm
