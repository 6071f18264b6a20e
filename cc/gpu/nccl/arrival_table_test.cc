#include "cc/gpu/nccl/arrival_table.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

using Ranks = std::vector<uint32_t>;

TEST(ArrivalTableTest, NamesTheRanksOfThisHostThatAreMissing) {
  const std::string path = testing::TempDir() + "/arrivals";
  const std::unique_ptr<ArrivalTable> here = std::move(ArrivalTable::Open(path, 5).value());
  const std::unique_ptr<ArrivalTable> beside =
      std::move(ArrivalTable::Open(path, 5).value());  // as another process has it
  EXPECT_TRUE(here->Missing(1).empty());
  for (const uint32_t rank : {0u, 1u, 3u}) beside->Arrive(rank, 0);
  EXPECT_EQ(here->Missing(1), (Ranks{0, 1, 3}));  // nothing is known of 2 and 4
  here->Arrive(0, 1);
  beside->Arrive(3, 2);
  EXPECT_EQ(here->Missing(1), (Ranks{1}));
  EXPECT_EQ(here->Here(1), (Ranks{0, 3}));
  EXPECT_EQ(beside->Missing(2), (Ranks{0, 1}));
}

TEST(ArrivalTableTest, APlaceThatCannotBeIsNamed) {
  const Status status = ArrivalTable::Open("/nowhere/arrivals", 2).status();
  EXPECT_EQ(status.message(),
            "the ranks' arrival table /nowhere/arrivals cannot be shared: No such file or directory.\n"
            "  Cure: give all processes of this host one /dev/shm in which they may write.");
}

}  // namespace
}  // namespace jaxcomm::nccl
