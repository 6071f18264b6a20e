#include "cc/transport/frame.h"

#include <cstdio>
#include <string>

#include "cc/base/little_endian.h"
#include "cc/transport/message_id.h"

namespace jaxcomm {
namespace {

constexpr size_t kBytesAt = 4, kIdAt = 8;
static_assert(kIdAt + kMessageIdBytes == kHeaderBytes);

Status TooLarge(const char* name, uint32_t bytes, int64_t max) {
  return InvalidArgument(std::string("a ") + name + " of " + std::to_string(bytes) + " bytes, more than " +
                         std::to_string(max));
}

}  // namespace

void EncodeHeader(const Header& header, std::byte* out) {
  StoreNumber(static_cast<uint32_t>(header.type), out);
  StoreNumber<uint32_t>(header.bytes, out + kBytesAt);
  EncodeMessageId(header.id, out + kIdAt);
}

Result<Header> DecodeHeader(const std::byte* in) {
  const auto type = LoadNumber<uint32_t>(in);
  const Header header{static_cast<FrameType>(type), LoadNumber<uint32_t>(in + kBytesAt), DecodeMessageId(in + kIdAt)};
  switch (header.type) {
    case FrameType::kMessage:
      if (header.bytes > Transport::kMaxMessage) return TooLarge("message", header.bytes, Transport::kMaxMessage);
      return header;
    case FrameType::kNotice:
      if (header.bytes > Transport::kMaxNotice) return TooLarge("notice", header.bytes, Transport::kMaxNotice);
      break;
    case FrameType::kGoodbye:
      if (header.bytes != 0) return TooLarge("goodbye", header.bytes, 0);
      break;
    default:
      char text[64];
      std::snprintf(text, sizeof(text), "a frame of the unknown type 0x%08x", type);
      return InvalidArgument(text);
  }
  if (!(header.id == MessageId())) return InvalidArgument("a notice or goodbye that carries a message id");
  return header;
}

}  // namespace jaxcomm
