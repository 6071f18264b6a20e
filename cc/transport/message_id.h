// A message id as a fixed number of bytes.
//
//   std::byte bytes[kMessageIdBytes];
//   EncodeMessageId(id, bytes);
//   id = DecodeMessageId(bytes);
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/little_endian.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

constexpr size_t kMessageIdBytes = 36;

inline void EncodeMessageId(const MessageId& id, std::byte* out) {
  StoreNumber<uint64_t>(id.call.communicator, out);
  StoreNumber<uint32_t>(id.call.launch, out + 8);
  StoreNumber<uint32_t>(id.call.site, out + 12);
  StoreNumber<uint32_t>(id.call.iteration, out + 16);
  StoreNumber<uint32_t>(id.from, out + 20);
  StoreNumber<uint32_t>(id.to, out + 24);
  StoreNumber<uint32_t>(id.index, out + 28);
  StoreNumber<uint32_t>(id.segment, out + 32);
}

inline MessageId DecodeMessageId(const std::byte* in) {
  MessageId id;
  id.call.communicator = LoadNumber<uint64_t>(in);
  id.call.launch = LoadNumber<uint32_t>(in + 8);
  id.call.site = LoadNumber<uint32_t>(in + 12);
  id.call.iteration = LoadNumber<uint32_t>(in + 16);
  id.from = LoadNumber<uint32_t>(in + 20);
  id.to = LoadNumber<uint32_t>(in + 24);
  id.index = LoadNumber<uint32_t>(in + 28);
  id.segment = LoadNumber<uint32_t>(in + 32);
  return id;
}

}  // namespace jaxcomm
