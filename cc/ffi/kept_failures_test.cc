#include "cc/ffi/kept_failures.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

std::string Json(const std::string& message, const std::string& record) {
  return "{\"message\":\"" + message + "\",\"record\":" + record + "}";
}

TEST(KeptFailures, AreFoundByTheTextThatBeginsWithTheirMessage) {
  KeptFailures failures;
  failures.Keep(Status(Code::kDeadlineExceeded, "psum #1 is late", "{\"missing\":[1]}"));
  failures.Keep(Status(Code::kDeadlineExceeded, "psum #12 is late", "{\"missing\":[2]}"));
  failures.Keep(Status(Code::kDeadlineExceeded, "psum #12 is late, and more", "{\"missing\":[3]}"));
  failures.Keep(Status(Code::kDeadlineExceeded, "no record"));
  failures.Keep(Status(Code::kInternal, "no memory"));
  EXPECT_EQ(failures.Find("psum #1 is late"), Json("psum #1 is late", "{\"missing\":[1]}"));
  EXPECT_EQ(failures.Find("psum #12 is late; also on device 5"), Json("psum #12 is late", "{\"missing\":[2]}"));
  EXPECT_EQ(failures.Find("psum #12 is late, and more"), Json("psum #12 is late, and more", "{\"missing\":[3]}"));
  EXPECT_EQ(failures.Find("no record [type]"), Json("no record", "{\"error\":\"DeadlineError\"}"));
  EXPECT_EQ(failures.Find("no memory"), Json("no memory", "{\"error\":\"JaxcommError\"}"));
  EXPECT_EQ(failures.Find("psum #12 is"), "");
  EXPECT_EQ(failures.Find("so psum #1 is late"), "");
  EXPECT_EQ(failures.Find(""), "");
}

TEST(KeptFailures, EachIsAwaitedInOrder) {
  KeptFailures failures;
  EXPECT_EQ(failures.Await(/*seen=*/0, /*waits=*/false), "");
  std::string awaited;
  std::thread waiting([&] { awaited = failures.Await(/*seen=*/0, /*waits=*/true); });
  failures.Keep(Status(Code::kInternal, "first", "{}"));
  waiting.join();
  EXPECT_EQ(awaited, Json("first", "{}"));
  failures.Keep(Status(Code::kInternal, "second", "{}"));
  EXPECT_EQ(failures.Await(0, false), Json("first", "{}"));
  EXPECT_EQ(failures.Await(1, false), Json("second", "{}"));
  EXPECT_EQ(failures.Await(2, false), "");
  for (size_t i = 0; i < KeptFailures::kMost; ++i) failures.Keep(Status(Code::kInternal, std::to_string(i), "{}"));
  EXPECT_EQ(failures.Await(0, false), Json("0", "{}"));
}

TEST(KeptFailures, ALongMessageIsFoundByWhatIsLeftOfIt) {
  KeptFailures failures;
  const std::string alike(KeptFailures::kShown - 1, 'x');
  failures.Keep(Status(Code::kInternal, alike + "a" + std::string(1000, 'y'), "{\"number\":1}"));
  failures.Keep(Status(Code::kInternal, alike + "b" + std::string(1000, 'y'), "{\"number\":2}"));
  EXPECT_NE(failures.Find(alike + "a").find("\"number\":1"), std::string::npos);
  EXPECT_NE(failures.Find(alike + "byy [type]").find("\"number\":2"), std::string::npos);
  EXPECT_EQ(failures.Find(alike), "");
}

TEST(KeptFailures, TheOldestIsForgottenAndTheNewestIsFound) {
  KeptFailures failures;
  for (size_t i = 0; i <= KeptFailures::kMost; ++i) {
    for (int rank = 0; rank < 8; ++rank) failures.Keep(InvalidArgument("call " + std::to_string(i) + "."));
  }
  EXPECT_EQ(failures.Find("call 0."), "");
  EXPECT_NE(failures.Find("call 1."), "");
  EXPECT_NE(failures.Find("call " + std::to_string(KeptFailures::kMost) + "."), "");
  failures.Keep(InvalidArgument("call 7.", "{\"number\":8}"));
  EXPECT_NE(failures.Find("call 7.").find("\"number\":8"), std::string::npos);
}

TEST(KeptFailures, TextThatIsNotUtf8IsKeptAsXlaIsGivenIt) {
  KeptFailures failures;
  failures.Keep(Status(Code::kInternal, "axis \xFF", "{\"axes\":\"\xFF\"}"));
  EXPECT_EQ(failures.Find("axis ?"), Json("axis ?", "{\"axes\":\"?\"}"));
}

TEST(KeptFailures, ThreadsKeepAndFindAtOnce) {
  KeptFailures failures;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&failures, thread] {
      for (int i = 0; i < 50; ++i) {
        const std::string message = "call " + std::to_string(thread) + "." + std::to_string(i) + ";";
        failures.Keep(InvalidArgument(message));
        EXPECT_EQ(failures.Find(message), Json(message, "{\"error\":\"JaxcommError\"}"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace jaxcomm
