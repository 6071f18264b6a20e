#include "cc/executor/calls/call_site_stats.h"

#include <chrono>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(CallSiteStatsTest, NamesWithOddCharactersAreValidJson) {
  CallSiteStats stats;
  stats.Site({"a\"b\\c\n\t\x01\x1f\x7f\xc3\xa9/", std::string("null\0byte", 9), "", 2, 8});
  const std::string json = stats.Json();
  EXPECT_NE(json.find(R"("name":"a\"b\\c\u000a\u0009\u0001\u001f)"
                      "\x7f\xc3\xa9/\""),
            std::string::npos)
      << json;
  EXPECT_NE(json.find(R"("axes":"null\u0000byte")"), std::string::npos) << json;
}

TEST(CallSiteStatsTest, WhatCallsWereLikeIsKeptOverTime) {
  SiteStats site;
  const SiteStats::Clock::time_point begin{std::chrono::seconds(5)};
  const auto record = [&](std::chrono::milliseconds at, double late, double after) {
    CallRecord call;
    call.arrivals = {0, late};
    call.after_arrival = after;
    site.Record(std::move(call), begin + at);
  };
  record(std::chrono::milliseconds(0), 0.5, 2);
  record(std::chrono::milliseconds(60), 0.25, 1);
  record(std::chrono::milliseconds(70), 0.125, 4);
  const std::string json = site.Json({"psum", "data", "", 2, 8});
  EXPECT_NE(
      json.find(R"("spans":[{"at_us":5000000,"length_us":62500,"calls":2,"after_arrival_s":1.5,"arrivals":[0,0.375]},)"
                R"({"at_us":5062500,"length_us":62500,"calls":1,"after_arrival_s":4,"arrivals":[0,0.125]}])"),
      std::string::npos)
      << json;
  EXPECT_EQ(site.Json({"psum", "data", "", 2, 8}, /*with_spans=*/false).find("spans"), std::string::npos);
  site.Reset();
  EXPECT_NE(site.Json({"psum", "data", "", 2, 8}).find(R"("spans":[])"), std::string::npos);
}

TEST(CallSiteStatsTest, WaitsLastUntilTheLastArrivalInTheRanksGroup) {
  const auto json_of = [](const std::vector<double>& waits) {
    SiteStats site;
    CallRecord call;
    call.arrivals = {0, 0.5, 0.25, 1};
    call.waits = waits;
    site.Record(std::move(call));
    return site.Json({"psum", "data", "", 4, 8});
  };
  EXPECT_NE(json_of({}).find(R"("wait_s":[1,0.5,0.75,0])"), std::string::npos);
  EXPECT_NE(json_of({0.5, 0, 0.75, 0}).find(R"("wait_s":[0.5,0,0.75,0])"), std::string::npos);
}

TEST(CallSiteStatsTest, LatestCallsHaveTheirTimesAndErrors) {
  CallSiteStats stats;
  const auto site = stats.Site({"psum", "data", "direct", 2, 8});
  const SiteStats::Clock::time_point first{std::chrono::seconds(5)};
  for (int64_t number = 1; number <= static_cast<int64_t>(SiteStats::kLatest) + 1; ++number) {
    CallRecord record;
    record.arrivals = {0, 0.5};
    record.after_arrival = 0.25;
    record.call = {7, number, first};
    site->Record(std::move(record));
  }
  site->KeepFailure({{8, 40, first}, {0, CallRecord::kUnknown}, {0, 3}, "late \"1\"", first + std::chrono::seconds(2)});
  const std::string json = stats.CallsJson();
  const std::string label = R"({"name":"psum","axes":"data","plan":"direct","ranks":2,"bytes":8,)";
  const std::string times = R"("at_us":5000000,"arrivals":[0,0.5],"took_s":0.75,"processes":[],"error":""})";
  EXPECT_EQ(json.find("[" + label + R"("id":7,"number":2,)" + times + ","), 0u) << json;
  EXPECT_NE(json.find(label + R"("id":7,"number":33,)" + times), std::string::npos) << json;
  EXPECT_NE(json.find("," + label + R"("id":8,"number":40,"at_us":5000000,"arrivals":[0,null],"took_s":2,)" +
                      R"("processes":[0,3],"error":"late \"1\""}])"),
            std::string::npos)
      << json;
  stats.Reset();
  EXPECT_EQ(stats.CallsJson(), "[]");
}

TEST(CallSiteStatsTest, OfRecordsThatNoSiteHasTheLatestAreKept) {
  CallSiteStats stats;
  const auto held = stats.Site({"psum", "data", "held", 2, 8});
  for (size_t i = 0; i < 1000; ++i) stats.Site({"psum", "data", "plan " + std::to_string(i), 2, 8});
  const std::string json = stats.Json();
  size_t sites = 0;
  for (size_t at = 0; (at = json.find("\"plan\":", at)) != std::string::npos; ++at) ++sites;
  EXPECT_LE(sites, CallSiteStats::kUnused + 2);
  EXPECT_NE(json.find("\"held\""), std::string::npos);
  EXPECT_NE(json.find("\"plan 999\""), std::string::npos);
  EXPECT_EQ(json.find("\"plan 900\""), std::string::npos);
}

}  // namespace
}  // namespace jaxcomm
