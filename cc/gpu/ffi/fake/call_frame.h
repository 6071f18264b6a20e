// XLA as a handler sees it: a call's operands, attributes, stream and memory, and the errors that it gets back.
//
//   fake::Call call(XLA_FFI_ExecutionStage_EXECUTE, stream);
//   call.InPlace(x).Text("group", "data");
//   EXPECT_EQ(call.Run(JaxcommMessages), "");   // the error's message; empty: none
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  std::string message;
};

namespace fake {

class Call {
 public:
  Call(XLA_FFI_ExecutionStage stage, void* stream) : stage_(stage), stream_(stream) {}

  Call& InPlace(std::vector<float>& x) {
    dims_.push_back(static_cast<int64_t>(x.size()));
    XLA_FFI_Buffer& buffer = buffers_.emplace_back();
    buffer.struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    buffer.dtype = XLA_FFI_DataType_F32;
    buffer.data = x.data();
    buffer.rank = 1;
    buffer.dims = &dims_.back();
    return *this;
  }

  Call& Text(const std::string& name, const std::string& value) {
    const std::string& kept = texts_.emplace_back(value);
    spans_.push_back({kept.data(), kept.size()});
    return Add(name, XLA_FFI_AttrType_STRING, &spans_.back());
  }

  std::string Run(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
    std::vector<XLA_FFI_ArgType> arg_types(buffers_.size(), XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> ret_types(buffers_.size(), XLA_FFI_RetType_BUFFER);
    std::vector<XLA_FFI_AttrType> attr_types;
    std::vector<void*> buffers, attrs;
    std::deque<XLA_FFI_ByteSpan> spans;
    std::vector<XLA_FFI_ByteSpan*> names;
    for (XLA_FFI_Buffer& buffer : buffers_) buffers.push_back(&buffer);
    for (auto& [name, attribute] : attributes_) {
      spans.push_back({name.data(), name.size()});
      names.push_back(&spans.back());
      attr_types.push_back(attribute.first);
      attrs.push_back(attribute.second);
    }
    const XLA_FFI_Api api = Api();
    const auto size = static_cast<int64_t>(buffers.size());
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.ctx = reinterpret_cast<decltype(frame.ctx)>(this);
    frame.stage = stage_;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, size, arg_types.data(), buffers.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, size, ret_types.data(), buffers.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,      static_cast<int64_t>(attrs.size()),
                   attr_types.data(),         names.data(), attrs.data()};
    const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
    return error ? error->message : "";
  }

 private:
  Call& Add(const std::string& name, XLA_FFI_AttrType type, void* attribute) {
    attributes_[name] = {type, attribute};
    return *this;
  }

  template <typename Context>
  static Call& Of(Context* context) {
    return *reinterpret_cast<Call*>(context);
  }

  static XLA_FFI_Api Api() {
    XLA_FFI_Api api{};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return std::make_unique<XLA_FFI_Error>(XLA_FFI_Error{args->message}).release();
    };
    api.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      args->stream = Of(args->ctx).stream_;
      return nullptr;
    };
    api.XLA_FFI_DeviceMemory_Allocate = [](XLA_FFI_DeviceMemory_Allocate_Args* args) -> XLA_FFI_Error* {
      args->data = std::malloc(args->size);
      return nullptr;
    };
    api.XLA_FFI_DeviceMemory_Free = [](XLA_FFI_DeviceMemory_Free_Args* args) -> XLA_FFI_Error* {
      std::free(args->data);
      return nullptr;
    };
    return api;
  }

  const XLA_FFI_ExecutionStage stage_;
  void* const stream_;
  std::deque<XLA_FFI_Buffer> buffers_;
  std::deque<int64_t> dims_;
  std::map<std::string, std::pair<XLA_FFI_AttrType, void*>> attributes_;  // sorted, as XLA sorts them
  std::deque<std::string> texts_;
  std::deque<XLA_FFI_ByteSpan> spans_;
};

}  // namespace fake
