#include "cc/gpu/nccl/library.h"

#include "cc/gpu/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

TEST(LibraryTest, KnowsItsVersion) { EXPECT_EQ(Loaded().VersionText(), "2.32.1"); }

TEST(LibraryTest, SaysInOneLineWhyThereIsNone) {
  const Result<Library> nowhere = Library::Load("/nowhere/libnccl.so.2");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().message().rfind("no NCCL: /nowhere/libnccl.so.2: cannot open", 0), 0u);
  const Result<Library> old = Library::Load("cc/gpu/nccl/libfake_nccl_old.so");
  ASSERT_FALSE(old.ok());
  EXPECT_NE(old.status().message().find("is of version 2.26.6; 2.28 or later is needed"), std::string::npos);
  const Result<Library> another = Library::Load("libm.so.6");
  ASSERT_FALSE(another.ok());
  EXPECT_EQ(another.status().message(), "no NCCL: libm.so.6 has no ncclGetVersion");
}

TEST(LibraryTest, TheFirstAnswerIsTheAnswerToAll) {
  const Result<const Library*> first = Library::Open(kFake);
  ASSERT_TRUE(first.ok());
  const Result<const Library*> second = Library::Open("/nowhere/libnccl.so.2");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first.value(), second.value());
}

}  // namespace
}  // namespace jaxcomm::nccl
