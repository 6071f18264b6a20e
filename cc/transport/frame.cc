#include "cc/transport/frame.h"

#include <cstdio>
#include <string>

#include "cc/base/text.h"

namespace jaxcomm {
namespace {

std::byte* Put(std::byte* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) *out++ = static_cast<std::byte>(value >> (8 * i));
  return out;
}

template <typename Number>
void Get(const std::byte*& in, Number& value) {
  uint64_t read = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) read |= static_cast<uint64_t>(*in++) << (8 * i);
  value = static_cast<Number>(read);
}

Status TooLarge(const char* name, uint32_t bytes, int64_t max) {
  return InvalidArgument(std::string("a ") + name + " of " + std::to_string(bytes) + " bytes, more than " +
                         std::to_string(max));
}

}  // namespace

void EncodeHeader(const Header& header, std::byte* out) {
  out = Put(out, static_cast<uint32_t>(header.type), 4);
  out = Put(out, header.bytes, 4);
  out = Put(out, header.id.call.module, 8);
  for (const uint32_t number : {header.id.call.launch, header.id.call.site, header.id.call.iteration, header.id.from,
                                header.id.to, header.id.index, header.id.segment}) {
    out = Put(out, number, 4);
  }
}

Result<Header> DecodeHeader(const std::byte* in) {
  Header header;
  uint32_t type;
  Get(in, type);
  Get(in, header.bytes);
  Get(in, header.id.call.module);
  for (uint32_t* const number : {&header.id.call.launch, &header.id.call.site, &header.id.call.iteration,
                                 &header.id.from, &header.id.to, &header.id.index, &header.id.segment}) {
    Get(in, *number);
  }
  header.type = static_cast<FrameType>(type);
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
  if (!(header.id == MessageId())) return InvalidArgument("a frame that is no message but names one");
  return header;
}

}  // namespace jaxcomm
