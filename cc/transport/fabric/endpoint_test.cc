#include "cc/transport/fabric/endpoint.h"

#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/fabric/library.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

class EndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Libfabric::Get().ok()) GTEST_SKIP() << Libfabric::Get().status().message();
  }
};

TEST_F(EndpointTest, EachDomainIsListedOnce) {
  const Result<std::vector<Domain>> domains = Endpoint::Domains();
  ASSERT_TRUE(domains.ok()) << domains.status().message();
  std::set<std::pair<std::string, std::string>> names;
  for (const Domain& domain : domains.value()) {
    EXPECT_TRUE(names.emplace(domain.provider, domain.domain).second) << domain.provider << "/" << domain.domain;
  }
  EXPECT_FALSE(names.empty());
}

TEST_F(EndpointTest, AnUnknownProviderIsAnError) {
  const Status status = Endpoint::Open({"nosuch", ""}, 16).status();
  EXPECT_EQ(status.message().find("libfabric has no provider nosuch for tagged messages here ("), 0u)
      << status.message();
}

TEST_F(EndpointTest, AnUnknownDomainIsAnError) {
  if (!Endpoint::Open({"tcp;ofi_rxm", "lo"}, 16).ok()) GTEST_SKIP() << "this machine lacks the provider";
  EXPECT_EQ(Endpoint::Open({"tcp;ofi_rxm", "nosuch"}, 16).status().message(),
            "libfabric's tcp;ofi_rxm has no domain nosuch here.\n  Cure: name a fabric that `jaxcomm rails` lists");
}

TEST_F(EndpointTest, SignalHandlersStay) {
  const auto handler = [](int) {};
  struct sigaction own {
  }, before{}, after{};
  own.sa_handler = handler;
  ASSERT_EQ(sigaction(SIGTERM, &own, &before), 0);
  Endpoint::Domains();
  ASSERT_EQ(sigaction(SIGTERM, &before, &after), 0);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
}

}  // namespace
}  // namespace jaxcomm
