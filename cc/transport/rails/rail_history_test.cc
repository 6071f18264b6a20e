#include "cc/transport/rails/rail_history.h"

#include <chrono>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr RailHistory::Clock::time_point kBegin{std::chrono::seconds(7)};

std::string Json(const RailHistory& history) {
  std::ostringstream out;
  history.WriteJson(out);
  return out.str();
}

TEST(RailHistory, RecordsBytesRatesAndChangesOfTheShare) {
  RailHistory history;
  EXPECT_EQ(Json(history), R"("spans":[],"changes":[])");
  history.Divide(768, kBegin);
  history.Carry(100, kBegin);
  history.Carry(28, kBegin + std::chrono::milliseconds(1));
  history.Measure(2e6, kBegin + std::chrono::milliseconds(100));
  history.Measure(4e6, kBegin + std::chrono::milliseconds(101));
  history.Change(false, "a \"cut\"", kBegin + std::chrono::milliseconds(102));
  EXPECT_EQ(Json(history), R"("spans":[{"at_us":7000000,"length_us":62500,"bytes":128,"bytes_per_s":null,"share":768},)"
                           R"({"at_us":7062500,"length_us":62500,"bytes":0,"bytes_per_s":3e+06,"share":null}],)"
                           R"("changes":[{"at_us":7102000,"is_open":false,"why":"a \"cut\""}])");
}

TEST(RailHistory, ALongRunKeepsTheLastShareOfASpanAndTheLastChanges) {
  RailHistory history;
  for (int second = 0; second < 1000; ++second) {
    history.Divide(static_cast<uint32_t>(second % 2), kBegin + std::chrono::seconds(second));
    history.Change(second % 2, "", kBegin + std::chrono::seconds(second));
  }
  const std::string json = Json(history);
  EXPECT_EQ(json.find("\"share\":0"), std::string::npos) << "spans of two seconds end with the second one";
  const std::string changes = json.substr(json.find("\"changes\""));
  EXPECT_EQ(changes.rfind(R"("changes":[{"at_us":943000000,)", 0), 0u) << changes;
  EXPECT_NE(changes.find("\"at_us\":1006000000"), std::string::npos) << changes;
}

}  // namespace
}  // namespace jaxcomm
