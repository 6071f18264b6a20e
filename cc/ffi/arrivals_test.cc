#include "cc/ffi/arrivals.h"

#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Clock = DeviceArrivals::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::string Text(const DeviceArrivals& device, size_t most_calls, Clock::time_point now) {
  std::ostringstream out;
  device.WriteJson(out, most_calls, now);
  return out.str();
}

TEST(DeviceArrivals, CountsCallsAndTheirTimes) {
  const Clock::time_point start = Clock::now();
  DeviceArrivals device;
  device.Arrive(start);
  EXPECT_EQ(device.OpenFor(start + seconds(2)), seconds(2));
  EXPECT_EQ(Text(device, 8, start + seconds(2)), R"("arrived":1,"ended":0,"is_open":true,"for_s":2,"calls":[])");
  device.End(start + seconds(3));
  EXPECT_EQ(device.OpenFor(start + seconds(4)), Clock::duration::zero());
  EXPECT_EQ(Text(device, 8, start + seconds(4)), R"("arrived":1,"ended":1,"is_open":false,"for_s":1,"calls":[[1,3]])");
}

TEST(DeviceArrivals, ACallThatNeverEndsIsForgottenAtTheNextArrival) {
  const Clock::time_point start = Clock::now();
  DeviceArrivals device;
  device.Arrive(start);
  device.Arrive(start + seconds(60));
  EXPECT_EQ(device.OpenFor(start + seconds(61)), seconds(1));
  device.End(start + seconds(61));
  device.End(start + seconds(62));  // ignored, because no call is open
  EXPECT_EQ(Text(device, 8, start + seconds(61)), R"("arrived":2,"ended":1,"is_open":false,"for_s":0,"calls":[[2,1]])");
}

TEST(DeviceArrivals, KeepsTheSameCallsAsOtherProcesses) {
  const Clock::time_point start = Clock::now();
  DeviceArrivals device;
  for (int i = 1; i <= 20000; ++i) {  // a call per millisecond, for 20 s
    device.Arrive(start + milliseconds(i));
    device.End(start + milliseconds(i));
  }
  const std::string text = Text(device, 8, start + seconds(20));
  EXPECT_NE(text.find("\"arrived\":20000,"), std::string::npos);
  // The text has at most 8 calls, which cover several seconds, so their numbers are multiples of 1024.
  EXPECT_NE(text.find("\"calls\":[[12288,0],[13312,0],"), std::string::npos) << text;
}

TEST(DeviceArrivals, RareCallsAreAllKept) {
  const Clock::time_point start = Clock::now();
  DeviceArrivals device;
  for (int i = 1; i <= 200; ++i) {
    device.Arrive(start + seconds(i));
    device.End(start + seconds(i));
  }
  EXPECT_NE(Text(device, 64, start).find("\"calls\":[[137,0],[138,0],"), std::string::npos);
  EXPECT_NE(Text(device, 8, start).find("\"calls\":[[144,0],[152,0],"), std::string::npos);
}

TEST(Arrivals, SitesWithTheLatestCallsComeFirst) {
  const Clock::time_point start = Clock::now();
  Arrivals arrivals;
  arrivals.Device(-7, "old", 0)->Arrive(start - seconds(2));
  arrivals.Device(8, "new", 3)->Arrive(start - seconds(1));
  EXPECT_EQ(arrivals.Json(1, 8).find(R"([{"key":"8","devices":[{"device":3,"arrived":1,)"), 0u);
  EXPECT_NE(arrivals.Json(2, 8).find(R"({"key":"-7",)"), std::string::npos);
  EXPECT_GE(arrivals.OpenFor(), seconds(2));
  EXPECT_EQ(arrivals.About(-7), "old");
  EXPECT_EQ(arrivals.About(9), "");
  EXPECT_EQ(arrivals.Find(9, 0), nullptr);
  EXPECT_EQ(arrivals.Find(8, 0), nullptr);
  EXPECT_EQ(arrivals.Find(8, 3), arrivals.Device(8, "", 3));
}

TEST(Arrivals, TheNumberOfSitesIsBounded) {
  Arrivals arrivals;
  for (size_t key = 0; key < Arrivals::kMostSites; ++key) {
    EXPECT_NE(arrivals.Device(static_cast<int64_t>(key), "", 0), nullptr);
  }
  EXPECT_EQ(arrivals.Device(-1, "", 0), nullptr);
  EXPECT_NE(arrivals.Device(0, "", 1), nullptr);
}

TEST(Arrivals, ThreadsRecordAtOnce) {
  Arrivals arrivals;
  std::vector<std::thread> threads;
  for (int device = 0; device < 4; ++device) {
    threads.emplace_back([&, device] {
      for (int i = 0; i < 1000; ++i) {
        arrivals.Device(i % 3, "", device)->Arrive();
        arrivals.Find(i % 3, device)->End();
        if (i % 100 == 0) arrivals.Json(2, 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(arrivals.Json(3, 0).find(R"("arrived":334,"ended":334)"), std::string::npos);
}

}  // namespace
}  // namespace jaxcomm
