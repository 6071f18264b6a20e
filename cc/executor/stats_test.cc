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

TEST(StatsTest, OfRecordsThatNoSiteHasTheLatestAreKept) {
  Stats stats;
  const auto held = stats.Site({"psum", "data", "held", 2, 8});
  for (size_t i = 0; i < 1000; ++i) stats.Site({"psum", "data", "plan " + std::to_string(i), 2, 8});
  const std::string json = stats.Json();
  size_t sites = 0;
  for (size_t at = 0; (at = json.find("\"plan\":", at)) != std::string::npos; ++at) ++sites;
  EXPECT_LE(sites, Stats::kUnused + 2);
  EXPECT_NE(json.find("\"held\""), std::string::npos);
  EXPECT_NE(json.find("\"plan 999\""), std::string::npos);
  EXPECT_EQ(json.find("\"plan 900\""), std::string::npos);
}

}  // namespace
}  // namespace jaxcomm
