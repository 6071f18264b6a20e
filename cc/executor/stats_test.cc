#include "cc/executor/stats.h"

#include <string>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(StatsTest, NamesWithOddCharactersAreValidJson) {
  Stats stats;
  stats.Site({"a\"b\\c\n\t\x01\x1f\x7f\xc3\xa9/", std::string("null\0byte", 9), "", 2, 8});
  const std::string json = stats.Json();
  EXPECT_NE(json.find(R"("name":"a\"b\\c\u000a\u0009\u0001\u001f)"
                      "\x7f\xc3\xa9/\""),
            std::string::npos)
      << json;
  EXPECT_NE(json.find(R"("axes":"null\u0000byte")"), std::string::npos) << json;
}

}  // namespace
}  // namespace jaxcomm
