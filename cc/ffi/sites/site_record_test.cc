#include "cc/ffi/sites/site_record.h"

#include <gtest/gtest.h>

#include <string>

namespace jaxcomm {
namespace {

const std::string kBegin = "4:psum 4:data 10:all_reduce 3:sum 4:plan ";
const std::string kNone = "0 0 0 1 ";  // no rule, no loss, not between processes, in place
const std::string kGroups = "0 2 2 0 4 1 0 1 1:a 1 1 7 0 ";

std::string ErrorOf(const std::string& bytes) { return SiteRecord::Decode(bytes).status().message(); }

TEST(SiteRecord, IsReadFieldByField) {
  const std::string bytes =
      "3:p m 0: 10:all_reduce 3:max 2:\xC3\xA4 0 1 3 0 4 1 0 1 9 3 1:a 0: 1:f 1 2 4602678819172646912 1 1 2 4:eth1 0 " +
      std::string("1 -5 6 7 3:a:1 0 ");
  const Result<SiteRecord> read = SiteRecord::Decode(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const SiteRecord& site = read.value();
  EXPECT_EQ(site.name + "|" + site.axes + "|" + site.plan, "p m||\xC3\xA4");
  EXPECT_EQ(site.kind, Kind::kAllReduce);
  EXPECT_EQ(site.reduction, Reduction::kMax);
  ASSERT_EQ(site.groups.size(), 1u);
  ASSERT_EQ(site.groups[0].ranks.size(), 3u);
  EXPECT_EQ(site.groups[0].ranks[2].process, 1u);
  EXPECT_EQ(site.groups[0].ranks[2].number, 9);
  EXPECT_EQ(site.groups[0].schedules, (std::vector<std::string>{"a", "", "f"}));
  EXPECT_EQ(site.rule->rank, 2u);
  EXPECT_EQ(site.rule->seconds, 0.5);
  EXPECT_TRUE(site.rule->tries);
  ASSERT_EQ(site.lost_rails.size(), 1u);
  EXPECT_EQ(site.lost_rails[0].rank, 2u);
  EXPECT_EQ(site.lost_rails[0].rail, "eth1");
  EXPECT_FALSE(site.loss);
  EXPECT_EQ(site.between->module, -5);
  EXPECT_EQ(site.between->number, 7);
  EXPECT_EQ(site.between->line, "a:1");
  EXPECT_FALSE(site.is_in_place);
}

TEST(SiteRecord, SaysWhereItIsDamaged) {
  const std::string whole = kBegin + kGroups + kNone;
  EXPECT_TRUE(SiteRecord::Decode(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(ErrorOf(whole.substr(0, size)).find("a call site's record is damaged at byte "), std::string::npos)
        << size;
  }
  EXPECT_EQ(ErrorOf(whole + "1 "), "a call site's record is damaged at byte " + std::to_string(whole.size()) +
                                       ".\n  Cure: recompile the step with this jaxcomm.");
  for (const char* const bytes : {"99999999999999999999:psum ", "-1:psum ", "9999:psum ", " 4:psum ", "4 psum "}) {
    EXPECT_NE(ErrorOf(bytes).find("damaged at byte"), std::string::npos) << bytes;
  }
  EXPECT_NE(ErrorOf(std::string(SiteRecord::kMaxBytes + 1, '1')).find("at most"), std::string::npos);
}

TEST(SiteRecord, RefusesFieldsThatDoNotFitTogether) {
  const std::string late = "1 1 4602678819172646912 0 0 0 0 1 ", drop = "0 1 1 0 1024 1 4602678819172646912 1 1 7 ",
                    between = "1 0 0 0 0: 1 ", apart = "1 0 0 0 0: 0 ";
  const std::pair<std::string, std::string> cases[] = {
      {"0 0 " + kNone, "it has no group"},
      {"0 1 0 1 1:a " + kNone, "group 0 of 0 ranks lacks its schedule"},
      {"0 1 2 0 4 0 5 0 " + kNone, "group 0 of 2 ranks lacks its schedule"},
      {"0 1 2 0 4 0 5 2 1:a 1:b " + kNone, "group 0 of 2 ranks lacks its schedule"},
      {"0 1 2 0 4 0 4 1 1:a " + kNone, "group 0 of 2 ranks has device 4 twice"},
      {"1 2 2 0 4 0 5 1 1:a 3 0 6 0 7 0 8 2 1:a 1:b " + kNone, "its groups differ in size"},
      {"0 1 2 0 4 0 5 2 1:a 1:b 1 2 4602678819172646912 0 0 0 0 1 ", "group 0 of 2 ranks lacks its late rank"},
      {"0 1 2 0 4 1 5 2 1:a 1:b 1 -2 0 0 1 2 4:eth0 0 " + between, "group 0 of 2 ranks lacks the rank of a lost rail"},
      {"0 1 2 0 4 1 5 2 1:a 1:b 1 -2 0 0 2 0 4:eth0 1 4:eth0 0 " + between, "group 0 of 2 ranks lacks its schedule"},
      {"0 1 2 0 4 0 5 2 1:a 1:b 1 -2 0 0 1 1 4:eth0 0 0 1 ", "only a call between processes can lose rails"},
      {"0 1 2 0 4 0 5 1 1:a " + late, "only one group, with the late rank in it, may select one of several schedules"},
      {"0 2 2 0 4 1 5 2 1:a 1:b 2 0 6 1 7 1 1:a 1 1 4602678819172646912 0 0 0 " + between,
       "only one group, with the late rank in it, may select one of several schedules"},
      {"1 1 2 0 4 1 5 1 1:a " + drop + between, "its attributes do not fit together"},
      {kGroups + drop + "0 1 ",
       "its attributes do not fit together"},  // an allowed loss, but no call between processes
      {kGroups + drop + apart, "its attributes do not fit together"},
      {"1 1 2 0 4 1 5 1 1:a 0 0 " + apart, "its attributes do not fit together"},
      {kGroups + "0 0 0 0 ", "its attributes do not fit together"},  // not in place, but no call between processes
      {"1 1 1 0 4 0 0 0 " + between, "group 0 has one rank"},
  };
  for (const auto& [fields, error] : cases) EXPECT_EQ(ErrorOf(kBegin + fields), "psum over 'data': " + error);
  EXPECT_EQ(ErrorOf("1:g 1:d 10:all_gather 3:sum 4:none " + kGroups + kNone), "g over 'd': group 1 has one rank");
  EXPECT_EQ(ErrorOf("1:g 1:d 3:sum 10:all_gather 4:none " + kGroups + kNone),
            "g over 'd': unknown kind 'sum' or reduction 'all_gather'");
}

}  // namespace
}  // namespace jaxcomm
