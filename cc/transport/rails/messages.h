// What the rails of two processes tell each other: a letter, and numbers that are little-endian.
//
//   std::string bytes(1, kFences);
//   PutNumber<uint32_t>(bytes, 7);
//   NumberReader in(bytes.substr(1));
//   const auto seven = in.Get<uint32_t>();
//   if (!in.ok()) ...   // there was less
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cc/transport/transport.h"

namespace jaxcomm {

// Numbered, as numbered_notices.h says:
constexpr char kNotice = 'n';    // of whom the rails carry them for
constexpr char kReceived = 'r';  // messages that the other side need not keep; then their ids
constexpr char kAgain = 'a';     // how often each rail has been fenced: what went over it before is to be sent again
// Not numbered, for one rail:
constexpr char kFences = 'f';   // how many numbered notices have been taken, and how often each rail has been fenced
constexpr char kBrought = 'b';  // messages that this rail has brought; kReceived says so again, if it fails
constexpr char kAsk = 'q';      // nothing, but for the answer of the host

template <typename Number>
void PutNumber(std::string& bytes, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i) bytes.push_back(static_cast<char>(uint64_t{number} >> (8 * i) & 0xFF));
}

class NumberReader {
 public:
  explicit NumberReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number Get() {
    ok_ = ok_ && bytes_.size() >= sizeof(Number);
    if (!ok_) return 0;
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) number |= uint64_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
    bytes_.remove_prefix(sizeof(Number));
    return static_cast<Number>(number);
  }
  bool ok() const { return ok_; }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

constexpr size_t kMessageIdBytes = 36;

inline void PutMessageId(std::string& bytes, const MessageId& id) {
  PutNumber(bytes, id.call.module);
  for (const uint32_t number :
       {id.call.launch, id.call.site, id.call.iteration, id.from, id.to, id.index, id.segment}) {
    PutNumber(bytes, number);
  }
}

inline MessageId GetMessageId(NumberReader& in) {
  MessageId id;
  id.call.module = in.Get<uint64_t>();
  for (uint32_t* const number :
       {&id.call.launch, &id.call.site, &id.call.iteration, &id.from, &id.to, &id.index, &id.segment}) {
    *number = in.Get<uint32_t>();
  }
  return id;
}

}  // namespace jaxcomm
