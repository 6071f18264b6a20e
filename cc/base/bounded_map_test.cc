#include "cc/base/bounded_map.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace jaxcomm {
namespace {

template <typename Map>
class BoundedMapTest : public testing::Test {};

using Maps = testing::Types<std::map<int, std::string>, std::unordered_map<int, std::string>>;
TYPED_TEST_SUITE(BoundedMapTest, Maps);

TYPED_TEST(BoundedMapTest, TheOldestEntryGoesBeyondTheCapacity) {
  BoundedMap<int, std::string, TypeParam> map(3);
  for (const int key : {7, 1, 9}) EXPECT_EQ(map.Add(key, std::to_string(key)).dropped, std::nullopt);
  EXPECT_EQ(map.Add(4, "4").dropped, 7);
  EXPECT_EQ(map.Add(5, "5").dropped, 1);
  EXPECT_EQ(map.Find(7), nullptr);
  EXPECT_EQ(map.Find(1), nullptr);
  for (const int key : {9, 4, 5}) EXPECT_EQ(*map.Find(key), std::to_string(key));
  EXPECT_EQ(map.size(), 3u);
}

TYPED_TEST(BoundedMapTest, AKeyThatIsThereKeepsItsValueAndItsAge) {
  BoundedMap<int, std::string, TypeParam> map(2);
  map.Add(1, "first");
  map.Add(2, "second");
  const auto again = map.Add(1, "third");
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(*again.value, "first");
  EXPECT_EQ(map.size(), 2u);
  EXPECT_EQ(map.Add(3, "").dropped, 1);  // key 1 is still the oldest
}

TYPED_TEST(BoundedMapTest, AClearedMapForgetsTheOrderToo) {
  BoundedMap<int, std::string, TypeParam> map(2);
  map.Add(1, "");
  map.Add(2, "");
  map.Clear();
  EXPECT_EQ(map.size(), 0u);
  EXPECT_EQ(map.Add(3, "").dropped, std::nullopt);
  EXPECT_EQ(map.Add(4, "").dropped, std::nullopt);
  EXPECT_EQ(map.Add(5, "").dropped, 3);
}

TEST(BoundedMapOfPointersTest, ValuesMayOnlyBeMovable) {
  BoundedMap<int, std::unique_ptr<int>> map(1);
  map.Add(1, std::make_unique<int>(5));
  EXPECT_EQ(**map.Find(1), 5);
  EXPECT_EQ(map.lower_bound(0)->first, 1);
  EXPECT_EQ(map.lower_bound(2), map.end());
}

}  // namespace
}  // namespace jaxcomm
