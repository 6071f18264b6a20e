#include "cc/transport/udp/lossy_frame.h"

#include <string>

#include "cc/base/little_endian.h"

namespace jaxcomm {
namespace {

constexpr size_t kReliableAt = kHeaderBytes, kMayLoseAt = kReliableAt + 4, kSpansAt = kMayLoseAt + 4;
constexpr size_t kBitsAt = kSpansAt + 4;

}  // namespace

size_t LossyFrontBytes(size_t spans) { return (kBitsAt + (spans + 7) / 8 + 7) / 8 * 8; }

std::vector<std::byte> EncodeLossy(const Header& header, const Lossy& lossy) {
  std::vector<std::byte> front(LossyFrontBytes(lossy.important.size()));
  EncodeHeader(header, front.data());
  StoreNumber<uint32_t>(lossy.reliable, front.data() + kReliableAt);
  StoreNumber<uint32_t>(lossy.may_lose, front.data() + kMayLoseAt);
  StoreNumber<uint32_t>(static_cast<uint32_t>(lossy.important.size()), front.data() + kSpansAt);
  for (size_t i = 0; i < lossy.important.size(); ++i) {
    if (lossy.important[i]) front[kBitsAt + i / 8] |= static_cast<std::byte>(1 << (i % 8));
  }
  return front;
}

Result<Lossy> DecodeLossy(const std::byte* front, size_t size, uint32_t bytes) {
  Lossy lossy;
  if (size >= kBitsAt) {
    lossy.reliable = LoadNumber<uint32_t>(front + kReliableAt);
    lossy.may_lose = LoadNumber<uint32_t>(front + kMayLoseAt);
  }
  const size_t spans = size >= kBitsAt ? LoadNumber<uint32_t>(front + kSpansAt) : 0;
  const size_t most = size >= kBitsAt ? (size - kBitsAt) * 8 : 0;
  if (spans > most || LossyFrontBytes(spans) > size || lossy.reliable < LossyFrontBytes(spans) ||
      lossy.reliable > bytes || lossy.may_lose > bytes) {
    return InvalidArgument("an invalid lossy frame of " + std::to_string(bytes) +
                           " bytes: " + std::to_string(lossy.reliable) + " must arrive, " +
                           std::to_string(lossy.may_lose) + " may be lost");
  }
  for (size_t i = 0; i < spans; ++i) {
    lossy.important.push_back((front[kBitsAt + i / 8] & static_cast<std::byte>(1 << (i % 8))) != std::byte{0});
  }
  return lossy;
}

}  // namespace jaxcomm
