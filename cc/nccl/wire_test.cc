#include "cc/nccl/wire.h"

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/nccl/fake/fake.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

constexpr char kFake[] = "cc/nccl/libfake_nccl.so";

template <typename Function>
Function* Control(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen(kFake, RTLD_NOW | RTLD_LOCAL), name));
}

class WireTest : public testing::Test {
 protected:
  WireTest() : nccl_(Library::Load(kFake).value()) {
    Control<void()>("fake_reset")();
    RailId rail{"", {}};
    nccl_.GetUniqueId(&rail.id);
    soon_ = Clock::now() + std::chrono::seconds(20);
    made_ = std::move(Communicators::Create(nccl_, {1, 0, {rail}, {}}, soon_).value());
  }

  NcclWire Wire() {
    return NcclWire(nccl_, made_->rail(0), nullptr, soon_,
                    [this](DType, Reduction, const std::vector<const std::byte*>& sources, std::byte*, size_t) {
                      sums_ += sources.size();
                      return Status();
                    });
  }

  Library nccl_;
  Clock::time_point soon_;
  std::unique_ptr<Communicators> made_;
  size_t sums_ = 0;
};

// Rank 0 of two: it sends chunk 0, receives chunk 0 into slot 0, and adds both.
std::shared_ptr<const Messages> Exchange() {
  const std::vector<uint32_t> words = {Messages::kMagic, 1, 2, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0, 2, 0, 1};
  return std::make_shared<const Messages>(Messages::Decode(words.data(), words.size()).value());
}

TEST_F(WireTest, CarriesARoundInOneGroupAndThenAdds) {
  const Runner runner(Exchange(), Layout({{DType::kF32, 12}, {DType::kBF16, 4}}), Reduction::kSum);
  std::vector<std::byte> a(12), b(4), scratch(runner.scratch_bytes());
  NcclWire wire = Wire();
  const Status status = runner.Run({a.data(), b.data()}, scratch.data(), wire);
  ASSERT_TRUE(status.ok()) << status.message();
  std::string calls(1 << 10, '\0');
  calls.resize(Control<size_t(int, char*, size_t)>("fake_calls")(0, calls.data(), calls.size()));
  EXPECT_EQ(calls, "init -\nsend 12 to 1\nsend 4 to 1\nreceive 12 from 1\nreceive 4 from 1\n");
  EXPECT_EQ(sums_, 4u);
}

TEST_F(WireTest, EveryRefusalIsAnErrorThatSaysWhatItWas) {
  const Runner runner(Exchange(), Layout({{DType::kF32, 12}}), Reduction::kSum);
  std::vector<std::byte> a(12), scratch(runner.scratch_bytes());
  for (const auto& [function, words] :
       {std::pair("ncclGroupStart", "starting a group: "), std::pair("ncclSend", "sending: "),
        std::pair("ncclRecv", "receiving: "), std::pair("ncclGroupEnd", "ending a group: "),
        std::pair("ncclCommGetAsyncError", "ending a group: ")}) {
    Control<void()>("fake_reset")();
    Control<void(const char*, int, int)>("fake_fail")(function, 1, 6);
    NcclWire wire = Wire();
    const Status status = runner.Run({a.data()}, scratch.data(), wire);
    EXPECT_EQ(status.message().rfind(words, 0), 0u) << status.message();
    EXPECT_NE(status.message().find("remote process exited"), std::string::npos);
  }
  EXPECT_EQ(sums_, 0u);
}

}  // namespace
}  // namespace jaxcomm::nccl
