#include "cc/executor/calls/call_table.h"

#include <memory>
#include <new>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

struct FakeCall {
  int64_t number;
  bool has_failed = false;

  bool failed() const { return has_failed; }
};
using Table = CallTable<int, FakeCall>;

std::shared_ptr<FakeCall> Make(int64_t number) { return std::make_shared<FakeCall>(FakeCall{number}); }

TEST(CallTable, RanksJoinOneCallUntilItIsOverAndTheNextHasTheNextNumber) {
  Table calls;
  const auto [call, is_new] = calls.Join(5, Make);
  EXPECT_TRUE(is_new);
  EXPECT_EQ(call->number, 1);
  EXPECT_EQ(calls.Join(5, Make).call, call);
  EXPECT_FALSE(calls.Join(5, Make).is_new);
  EXPECT_TRUE(calls.Erase(5));
  EXPECT_FALSE(calls.Erase(5));
  EXPECT_EQ(calls.Find(5), nullptr);
  EXPECT_EQ(calls.Join(5, Make).call->number, 2);
}

TEST(CallTable, ACallThatCannotBeMadeTakesNoNumber) {
  Table calls;
  EXPECT_THROW(calls.Join(5, [](int64_t) -> std::shared_ptr<FakeCall> { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_EQ(calls.size(), 0u);
  EXPECT_EQ(calls.Join(5, Make).call->number, 1);
}

TEST(CallTable, TheOldestFailedCallsAreForgottenAndNoOther) {
  Table calls;
  for (int key = 0; key <= static_cast<int>(Table::kFailedKept); ++key) {
    calls.Join(key, Make).call->has_failed = true;
    calls.KeepFailed(key);
  }
  EXPECT_EQ(calls.Find(0), nullptr);
  EXPECT_EQ(calls.size(), Table::kFailedKept);
  calls.Find(1)->has_failed = false;  // as if the call were a later call with the same key
  calls.Join(-1, Make).call->has_failed = true;
  calls.KeepFailed(-1);
  EXPECT_NE(calls.Find(1), nullptr);
  calls.EraseIf([](int key, const FakeCall& call) { return key == 1 || call.number > 100; });
  EXPECT_EQ(calls.size(), 99u - 1);  // the calls numbered 2 to 100, except the call of key 1
}

}  // namespace
}  // namespace jaxcomm
