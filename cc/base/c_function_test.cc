#include "cc/base/c_function.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace jaxcomm {
namespace {

TEST(CFunctionTest, SuccessIsZeroAndLeavesTheBufferAlone) {
  char error[] = "as it was";
  bool ran = false;
  EXPECT_EQ(Answer(error, sizeof(error), [&] { ran = true; }), 0);
  EXPECT_EQ(Answer(error, sizeof(error), [] { return Status(); }), 0);
  EXPECT_TRUE(ran);
  EXPECT_STREQ(error, "as it was");
}

TEST(CFunctionTest, AnErrorIsItsCodeAndAsMuchOfItsTextAsFits) {
  char error[8];
  EXPECT_EQ(Answer(error, sizeof(error), [] { return InvalidArgument("a long text"); }),
            static_cast<int>(Code::kInvalidArgument));
  EXPECT_STREQ(error, "a long ");
  EXPECT_NE(Answer(nullptr, 0, [] { return InvalidArgument("nobody reads it"); }), 0);
}

TEST(CFunctionTest, AnExceptionIsAnError) {
  char error[32];
  EXPECT_EQ(Answer(error, sizeof(error), [] { throw std::runtime_error("thrown"); }),
            static_cast<int>(Code::kInternal));
  EXPECT_STREQ(error, "thrown");
}

TEST(CFunctionTest, LackOfMemoryIsAnErrorThatNeedsNone) {
  char error[32];
  EXPECT_EQ(Answer(error, sizeof(error), [] { throw std::bad_alloc(); }), static_cast<int>(Code::kInternal));
  EXPECT_STREQ(error, "this process has no memory for ");
}

TEST(CFunctionTest, ATextThatDoesNotFitTellsItsLength) {
  char out[4];
  int64_t size = 0;
  CopyText("longer", out, sizeof(out), &size);
  EXPECT_STREQ(out, "lon");
  EXPECT_EQ(size, 6);
}

TEST(CFunctionTest, AProgramIsWholeWords) {
  const char bytes[] = {0, 1, 0, 0, 0, 2, 0, 0, 0};
  const Result<std::vector<uint32_t>> words = ReadWords(bytes + 1, 8);  // not aligned
  ASSERT_TRUE(words.ok());
  EXPECT_EQ(words.value(), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(ReadWords(bytes, 7).status().message(), "program of 7 bytes is not a whole number of words");
}

}  // namespace
}  // namespace jaxcomm
