#include "cc/nccl/library.h"

#include "cc/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

TEST(LibraryTest, TakesTheFunctionsOfItsVersion) {
  const Library newer = Loaded(), older = Loaded(kOld);
  EXPECT_EQ(newer.VersionText(), "2.32.1");
  EXPECT_NE(newer.CommShrink, nullptr);
  EXPECT_NE(newer.CommRevoke, nullptr);
  EXPECT_NE(older.CommShrink, nullptr);
  EXPECT_EQ(older.CommRevoke, nullptr);
}

TEST(LibraryTest, SaysInOneLineWhyThereIsNone) {
  const Result<Library> nowhere = Library::Load("/nowhere/libnccl.so.2");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().message().rfind("no NCCL: /nowhere/libnccl.so.2: cannot open", 0), 0u);
  const Result<Library> ancient = Library::Load("cc/nccl/libfake_nccl_ancient.so");
  ASSERT_FALSE(ancient.ok());
  EXPECT_NE(ancient.status().message().find("is of version 2.26.6; 2.28 or later is needed"), std::string::npos);
  const Result<Library> another = Library::Load("libm.so.6");
  ASSERT_FALSE(another.ok());
  EXPECT_EQ(another.status().message(), "no NCCL: libm.so.6 has no ncclGetVersion");
}

TEST(LibraryTest, TheFirstAnswerIsTheAnswerToAll) {
  const Result<const Library*> first = Library::Open(kFake);
  ASSERT_TRUE(first.ok());
  const Result<const Library*> second = Library::Open(kOld);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first.value(), second.value());
}

}  // namespace
}  // namespace jaxcomm::nccl
