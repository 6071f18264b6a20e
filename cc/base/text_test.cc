#include "cc/base/text.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace jaxcomm {
namespace {

TEST(Text, IsCutBeforeALetter) {
  EXPECT_EQ(CutText("a\xC3\xA9", 3), "a\xC3\xA9");
  EXPECT_EQ(CutText("a\xC3\xA9", 2), "a");
  EXPECT_EQ(CutText("\xF0\x9F\x98\x80", 3), "");
  EXPECT_EQ(CutText("\x80\x80\x80", 2), "");  // the text has no byte at which a character begins
  EXPECT_EQ(CutText("", 0), "");
}

TEST(Text, ManyRanksThatFollowEachOtherAreARange) {
  EXPECT_EQ(JoinRanks(std::vector<uint32_t>{0, 1, 2, 4, 5, 6, 7, 8}), "0,1,2,4,5,6,7,8");
  EXPECT_EQ(JoinRanks(std::set<uint32_t>{0, 1, 2, 4, 5, 7, 8, 9, 10}), "0-2,4,5,7-10");
  EXPECT_EQ(JoinRanks(std::vector<uint32_t>{8, 7, 6, 5, 4, 3, 2, 1, 0}), "8,7,6,5,4,3,2,1,0");
}

TEST(Text, BytesThatArePartOfNoLetterBecomeQuestionMarks) {
  const std::string valid = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n";
  EXPECT_EQ(ValidText(valid), valid);
  EXPECT_EQ(ValidText("a\xC3"), "a?");
  EXPECT_EQ(ValidText("\xE2\x82z"), "??z");
  EXPECT_EQ(ValidText("\xC0\x80\xED\xA0\x80\xF5"), "??????");  // an overlong form, a surrogate, a byte beyond Unicode
}

}  // namespace
}  // namespace jaxcomm
