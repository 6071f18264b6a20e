// The fake libnccl in a test: its functions, and those that NCCL does not have, which tell it what is to happen.
//
//   const Library nccl = Loaded();
//   Control<void(const char*, int, int)>("fake_fail")("ncclAllGather", /*nth=*/1, /*outcome=*/6);
#pragma once

#include <dlfcn.h>

#include "cc/gpu/nccl/fake/fake.h"
#include "cc/gpu/nccl/library.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {

constexpr char kFake[] = "cc/gpu/nccl/libfake_nccl.so";

template <typename Function>
Function* Control(const char* name) {
  void* const handle = dlopen(kFake, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << dlerror();
  Function* const found = reinterpret_cast<Function*>(dlsym(handle, name));
  EXPECT_NE(found, nullptr) << name;
  return found;
}

inline Library Loaded() {
  Result<Library> nccl = Library::Load(kFake);
  EXPECT_TRUE(nccl.ok()) << nccl.status().message();
  return nccl.value();
}

}  // namespace jaxcomm::nccl
