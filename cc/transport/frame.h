// The frames of a connection. A frame is a header of fixed size, followed by `Header::bytes` bytes.
//
//   EncodeHeader({FrameType::kMessage, 4096, id}, out);
//   Result<Header> header = DecodeHeader(in);   // an error unless EncodeHeader wrote `in`
//
// All numbers are little-endian. A goodbye is sent only before the deliberate end of a connection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

enum class FrameType : uint32_t {  // the four bytes in a header spell jcM1, jcN1 or jcG1
  kMessage = 0x314D636A,
  kNotice = 0x314E636A,
  kGoodbye = 0x3147636A,
};

struct Header {
  FrameType type = FrameType::kMessage;
  uint32_t bytes = 0;
  MessageId id;  // zeros in notices and goodbyes
};

constexpr size_t kHeaderBytes = 44;

void EncodeHeader(const Header& header, std::byte* out);
Result<Header> DecodeHeader(const std::byte* in);

}  // namespace jaxcomm
