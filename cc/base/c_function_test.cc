#include "cc/base/c_function.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace jaxcomm {
namespace {

template <size_t kBytes>
JaxcommText Buffer(char (&bytes)[kBytes]) {
  return {bytes, kBytes, 0};
}

TEST(CFunctionTest, SuccessIsZeroAndLeavesTheBufferAlone) {
  char bytes[] = "as it was";
  JaxcommText error = Buffer(bytes);
  bool ran = false;
  EXPECT_EQ(Answer(&error, [&] { ran = true; }), 0);
  EXPECT_EQ(Answer(&error, [] { return Status(); }), 0);
  EXPECT_TRUE(ran);
  EXPECT_STREQ(bytes, "as it was");
}

TEST(CFunctionTest, AnErrorIsItsCodeAndAsMuchOfItsTextAsFits) {
  char bytes[8];
  JaxcommText error = Buffer(bytes);
  EXPECT_EQ(Answer(&error, [] { return InvalidArgument("a long text"); }), static_cast<int>(Code::kInvalidArgument));
  EXPECT_STREQ(bytes, "a long ");
  EXPECT_EQ(error.length, 11);
  JaxcommText none{nullptr, 0, 0};
  EXPECT_NE(Answer(&none, [] { return InvalidArgument("nobody reads it"); }), 0);
}

TEST(CFunctionTest, AnExceptionIsAnError) {
  char bytes[32];
  JaxcommText error = Buffer(bytes);
  EXPECT_EQ(Answer(&error, [] { throw std::runtime_error("thrown"); }), static_cast<int>(Code::kInternal));
  EXPECT_STREQ(bytes, "thrown");
}

TEST(CFunctionTest, LackOfMemoryIsAnErrorThatNeedsNone) {
  char bytes[32];
  JaxcommText error = Buffer(bytes);
  EXPECT_EQ(Answer(&error, [] { throw std::bad_alloc(); }), static_cast<int>(Code::kInternal));
  EXPECT_STREQ(bytes, "this process has no memory for ");
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
