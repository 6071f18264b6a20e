// The frames that go over a connection: each is a header of fixed size and then `bytes` bytes.
//
//   EncodeHeader({FrameType::kMessage, 4096, id}, out);
//   Result<Header> header = DecodeHeader(in);   // an error: not written by EncodeHeader
//
// All numbers are little-endian. A goodbye precedes only the deliberate end of a connection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

enum class FrameType : uint32_t {  // as text: jcM1, jcN1, jcG1
  kMessage = 0x314D636A,
  kNotice = 0x314E636A,
  kGoodbye = 0x3147636A,
};

struct Header {
  FrameType type = FrameType::kMessage;
  uint32_t bytes = 0;
  MessageId id;  // zeros if it is no message
};

constexpr size_t kHeaderBytes = 44;

void EncodeHeader(const Header& header, std::byte* out);
Result<Header> DecodeHeader(const std::byte* in);

}  // namespace jaxcomm
