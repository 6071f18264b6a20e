#include "gtest/gtest.h"

#if __has_include("xla/ffi/api/collectives_c_api.h")

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/ffi/lender.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/collectives_c_api.h"

struct XLA_FFI_Error {
  std::string message;
};

extern "C" int64_t jaxcomm_xla_lend(const XLA_FFI_CallFrame* frame, const jaxcomm::DeviceGroups* groups,
                                    void** communicator, char* error, int64_t size);

namespace jaxcomm {
namespace {

// An XLA that lends what it is told to, and remembers for what it was asked.
struct Xla {
  XLA_FFI_Collectives_Extension extension{};
  const XLA_FFI_Extension* attached = nullptr;
  std::string refusal;
  void* lent = nullptr;
  std::string asked;
} the_xla;

XLA_FFI_Error* Refuse() {
  if (the_xla.refusal.empty()) return nullptr;
  return std::make_unique<XLA_FFI_Error>(XLA_FFI_Error{the_xla.refusal}).release();
}

template <typename Args>
void Remember(const char* what, const Args& args) {
  the_xla.asked += std::string(what) + " in mode " + std::to_string(args.group_mode) + ":";
  for (size_t i = 0; i < args.num_groups; ++i) {
    for (size_t j = 0; j < args.groups[i].size; ++j) the_xla.asked += " " + std::to_string(args.groups[i].ids[j]);
    the_xla.asked += ";";
  }
  EXPECT_GT(args.communication_id, 0);  // 0 are XLA's own collectives
}

class LendTest : public testing::Test {
 protected:
  LendTest() {
    the_xla = Xla();
    the_xla.extension.extension_base.id = {XLA_FFI_Extension_Collectives, 0, 2};
    the_xla.extension.request_communicator = [](const XLA_FFI_Collectives_Extension*,
                                                XLA_FFI_Communicator_Request_Args* args) {
      EXPECT_EQ(args->struct_size, XLA_FFI_Communicator_Request_Args_STRUCT_SIZE);
      Remember("request", *args);
      return Refuse();
    };
    the_xla.extension.get_communicator = [](const XLA_FFI_Collectives_Extension*, XLA_FFI_Communicator_Get_Args* args) {
      EXPECT_EQ(args->struct_size, XLA_FFI_Communicator_Get_Args_STRUCT_SIZE);
      Remember("get", *args);
      args->communicator = static_cast<XLA_FFI_Communicator*>(the_xla.lent);
      return Refuse();
    };
    the_xla.attached = &the_xla.extension.extension_base;
    api_.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api_.XLA_FFI_InvokeContext_FindExtension = [](XLA_FFI_InvokeContext_FindExtension_Args* args) -> XLA_FFI_Error* {
      EXPECT_EQ(args->extension_type, XLA_FFI_Extension_Collectives);
      args->extension = the_xla.attached;
      return nullptr;
    };
    api_.XLA_FFI_Error_GetDetails = [](XLA_FFI_Error_GetDetails_Args* args) {
      args->message = args->error->message.c_str();
    };
    api_.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { std::unique_ptr<XLA_FFI_Error>(args->error); };
  }

  // Why none was lent; empty: one was.
  std::string Lend(XLA_FFI_ExecutionStage stage) {
    XLA_FFI_CallFrame frame{};
    frame.api = &api_;
    frame.stage = stage;
    const int64_t positions[] = {3, 1, 0, 2, 4}, sizes[] = {2, 3};
    const DeviceGroups groups{positions, sizes, 2};
    char error[1024] = "";
    lent_ = nullptr;
    const int64_t refused = jaxcomm_xla_lend(&frame, &groups, &lent_, error, sizeof(error));
    const std::string text = error,
                      head = "XLA lends no communicator: ", cure = ".\n  Cure: remove jaxcomm_cuda13_xla.so";
    EXPECT_EQ(refused, text.empty() ? 0 : 1);
    if (text.empty()) return text;
    EXPECT_EQ(text.rfind(head, 0), 0u) << text;
    EXPECT_NE(text.find(cure), std::string::npos) << text;
    return text.substr(head.size(), text.find(cure) - head.size());
  }

  XLA_FFI_Api api_{};
  void* lent_ = nullptr;
};

TEST_F(LendTest, InPrepareItRequestsTheGroupsByTheirFlattenedIds) {
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_PREPARE), "");
  EXPECT_EQ(the_xla.asked, "request in mode 3: 3 1; 0 2 4;");
}

TEST_F(LendTest, InExecuteItFetchesTheCommunicator) {
  the_xla.lent = &the_xla;
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_EXECUTE), "");
  EXPECT_EQ(the_xla.asked, "get in mode 3: 3 1; 0 2 4;");
  EXPECT_EQ(lent_, &the_xla);
}

TEST_F(LendTest, WhatXlaRefusesIsSaid) {
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_EXECUTE), "XLA gave none");
  the_xla.refusal = "two ranks on one device";
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_PREPARE), the_xla.refusal);
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_EXECUTE), the_xla.refusal);
}

TEST_F(LendTest, AnXlaWithoutTheExtensionIsTold) {
  the_xla.attached = nullptr;
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_PREPARE), "this XLA has no extension for collectives");
  api_.struct_size = offsetof(XLA_FFI_Api, XLA_FFI_InvokeContext_FindExtension);
  EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_PREPARE), "this XLA has no extensions");
}

TEST_F(LendTest, TheVersionIsLookedAt) {
  XLA_FFI_ExtensionId& id = the_xla.extension.extension_base.id;
  for (const auto& [major, minor] : {std::pair(1, 0), {1, 2}, {0, 0}}) {
    id.major_version = major;
    id.minor_version = minor;
    EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_PREPARE), "XLA's extension for collectives is of version " +
                                                        std::to_string(major) + "." + std::to_string(minor) +
                                                        "; this build of jaxcomm knows 0.1 and later");
  }
  for (const int minor : {1, 2, 9}) {
    id.major_version = 0;
    id.minor_version = minor;
    EXPECT_EQ(Lend(XLA_FFI_ExecutionStage_PREPARE), "");
  }
}

}  // namespace
}  // namespace jaxcomm

#else

TEST(Lend, NeedsTheHeader) { GTEST_SKIP() << "this jaxlib has no xla/ffi/api/collectives_c_api.h"; }

#endif
