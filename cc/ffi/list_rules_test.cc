#include "cc/ffi/list_rules.h"

#include <gtest/gtest.h>

namespace jaxcomm {
namespace {

DeviceGroup Group(const std::vector<uint32_t>& devices) {
  std::vector<MessageRank> ranks;
  for (const uint32_t device : devices) ranks.push_back({device, device, /*host=*/device});
  return DeviceGroup("devices", ranks, /*instance=*/0);
}

const ListRules kNone{16, 0, 64, 64, "", 0, {}};

TEST(ListRules, WithoutAPlanBytesChoose) {
  const DeviceGroup group = Group({0, 1, 2, 3});
  EXPECT_EQ(kNone.Choose(Kind::kAllReduce, group, 16).list, "all_reduce/flat/4");
  EXPECT_EQ(kNone.Choose(Kind::kAllReduce, group, 255).list, "all_reduce/direct/4");
  EXPECT_EQ(kNone.Choose(Kind::kAllReduce, group, 256).list, "all_reduce/ring/4");
  EXPECT_EQ(kNone.Choose(Kind::kAllGather, group, 16).list, "all_gather/direct/4");
}

TEST(ListRules, OnOneHostMoreIsFlat) {
  const DeviceGroup group("devices", {{0, 0, 7}, {1, 1, 7}}, /*instance=*/0);
  const ListRules rules{16, 100, 64, 64, "", 0, {}};
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, group, 50).list, "all_reduce/flat/2");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, group, 51).list, "all_reduce/direct/2");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1}), 50).list, "all_reduce/direct/2");
}

TEST(ListRules, APlanIsForAllReducesOfItsRanks) {
  const ListRules rules{16, 0, 64, 64, "3f9a01c2", 4, {{0, {""}}, {100, {"planned"}}}};
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 100).list, "planned");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 100).plan, "3f9a01c2");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 99).plan, "direct");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1}), 100).plan, "direct");
  EXPECT_EQ(rules.Choose(Kind::kReduceScatter, Group({0, 1, 2, 3}), 100).plan, "direct");
}

TEST(ListRules, ATrialComparesAPlansScheduleWithAnotherDefault) {
  ListRules rules{16, 0, 64, 64, "3f9a01c2", 4, {{0, {"straggler list", "straggler"}}, {200, {"ring list", "ring"}}}};
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 100).default_list, "");
  rules.tries = true;
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 100).default_list, "all_reduce/direct/4");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 200).default_list, "all_reduce/direct/4");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 256).default_list, "");
}

TEST(ListRules, AutoIsForAllReducesWhoseRanksAreInTheOrderOfTheirDevices) {
  const ListRules rules{16, 0, 64, 64, "auto", 0, {}};
  const DeviceCommunicator::ChosenList chosen = rules.Choose(Kind::kAllReduce, Group({0, 1, 2, 3}), 100);
  EXPECT_EQ(chosen.list, "all_reduce/direct/4");
  EXPECT_EQ(chosen.plan, "auto");
  EXPECT_EQ(rules.Choose(Kind::kAllReduce, Group({1, 0, 2, 3}), 100).plan, "direct");
  EXPECT_EQ(rules.Choose(Kind::kAllGather, Group({0, 1, 2, 3}), 100).plan, "direct");
}

}  // namespace
}  // namespace jaxcomm
