#include "cc/executor/messages/early_arrivals.h"

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(EarlyArrivals, TheOldestAreForgottenWhereThereAreTooMany) {
  EarlyArrivals early;
  for (uint32_t launch = 0; launch <= EarlyArrivals::kMost; ++launch) {
    early.Keep({77, launch, 0, 0}, {1, {{77, launch, 0, 0}, 0, 0, 0, ""}, Clock::now()});
  }
  EXPECT_FALSE(early.Has({77, 0, 0, 0}));
  EXPECT_EQ(early.Take({77, 1, 0, 0}).size(), 1u);
  EXPECT_FALSE(early.Has({77, 1, 0, 0}));
}

}  // namespace
}  // namespace jaxcomm
