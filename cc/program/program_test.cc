#include "cc/program/program.h"

#include <string>
#include <vector>

#include "cc/program/registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// clang-format off
// A program for two ranks with one chunk. Rank 0 adds both ranks' chunks, then rank 1 copies the sum.
std::vector<uint32_t> SumThenCopy() {
  return {
      Program::kMagic, 1, 2, 1, 2,
      0, 0, 2, 1, 0, /*reads*/ 0, 1, /*writes*/ 0,
      1, 0, 1, 1, 1, /*reads*/ 0, /*writes*/ 1, /*waits*/ 0,
  };
}
// clang-format on

Status DecodeStatus(const std::vector<uint32_t>& words) { return Program::Decode(words.data(), words.size()).status(); }

TEST(ProgramTest, Decodes) {
  const std::vector<uint32_t> words = SumThenCopy();
  const Result<Program> program = Program::Decode(words.data(), words.size());
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program.value().ranks(), 2u);
  ASSERT_EQ(program.value().ops().size(), 2u);
  EXPECT_EQ(program.value().ops()[0].successors, std::vector<uint32_t>{1});
  EXPECT_EQ(program.value().ops()[0].touches, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(program.value().ops_of(1), (std::vector<uint32_t>{0, 1}));
}

TEST(ProgramTest, EveryTruncationIsRefused) {
  const std::vector<uint32_t> words = SumThenCopy();
  for (size_t size = 0; size < words.size(); ++size) {
    EXPECT_FALSE(Program::Decode(words.data(), size).ok()) << size;
  }
}

struct Mistake {
  const char* name;
  size_t word;
  uint32_t value;
  const char* message;
};

class MistakeTest : public testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, IsNamedWithItsPlace) {
  std::vector<uint32_t> words = SumThenCopy();
  words[GetParam().word] = GetParam().value;
  const Status status = DecodeStatus(words);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos) << status.message();
  EXPECT_EQ(status.message().rfind("program ", 0), 0u) << status.message();
}

INSTANTIATE_TEST_SUITE_P(
    All, MistakeTest,
    testing::Values(Mistake{"magic", 0, 7, "not a jaxcomm program"},
                    Mistake{"version", 1, 2, "word 1: the version is 2, must be in [1, 2)"},
                    Mistake{"no_rank", 2, 0, "word 2: the number of ranks is 0"},
                    Mistake{"many_ranks", 2, 1u << 30, "the number of ranks is"},
                    Mistake{"many_ops", 4, 1u << 30, "word 4: the number of ops is 1073741824"},
                    Mistake{"rank", 5, 2, "word 5: a rank is 2, must be in [0, 2)"},
                    Mistake{"chunk", 6, 1, "word 6: a chunk is 1, must be in [0, 1)"},
                    Mistake{"reads_nothing", 7, 0, "word 7: the number of reads is 0, must be in [1, 3)"},
                    Mistake{"reads_twice", 11, 0, "word 12: a rank to read stands twice in its list"},
                    Mistake{"waits_for_itself", 20, 1, "word 20: an op to wait for is 1, must be in [0, 1)"}),
    [](const auto& info) { return info.param.name; });

TEST(ProgramTest, WordsAfterTheLastOpAreRefused) {
  std::vector<uint32_t> words = SumThenCopy();
  words.push_back(0);
  EXPECT_NE(DecodeStatus(words).message().find("word 21: more words follow the last op"), std::string::npos);
}

TEST(RegistryTest, FindsWhatWasAddedAndRefusesWhatIsMalformed) {
  ProgramRegistry registry;
  std::vector<uint32_t> words = SumThenCopy();
  EXPECT_EQ(registry.Find("a"), nullptr);
  EXPECT_TRUE(registry.Add("a", words.data(), words.size()).ok());
  ASSERT_NE(registry.Find("a"), nullptr);
  EXPECT_EQ(registry.Find("a")->ranks(), 2u);
  words[1] = 9;
  EXPECT_FALSE(registry.Add("b", words.data(), words.size()).ok());
  EXPECT_EQ(registry.Find("b"), nullptr);
}

}  // namespace
}  // namespace jaxcomm
