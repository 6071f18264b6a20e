// What the rails of two processes tell each other: a letter, and numbers (little_endian.h).
//
//   std::string bytes(1, kBrought);
//   AppendMessageId(bytes, id);
//   rail->Notify(process, bytes);
#pragma once

#include <cstddef>
#include <string>

#include "cc/transport/message_id.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Numbered, as numbered_notices.h says:
constexpr char kNotice = 'n';    // of whom the rails carry them for
constexpr char kMessage = 'm';   // a small one of theirs: its id and its bytes
constexpr char kReceived = 'r';  // large ones that the other side need not keep; then their ids
constexpr char kAgain = 'a';     // how often each rail has been fenced: what went over it before is to be sent again
// Not numbered, for one rail:
constexpr char kFences = 'f';   // how many numbered notices have been taken, and how often each rail has been fenced
constexpr char kBrought = 'b';  // messages that this rail has brought; kReceived says so again, if it fails
constexpr char kPosted = 'p';  // what was expected before this rail was restored has been posted on it, too; its fences
constexpr char kAsk = 'q';     // nothing, but for the answer of the host

inline void AppendMessageId(std::string& bytes, const MessageId& id) {
  bytes.resize(bytes.size() + kMessageIdBytes);
  EncodeMessageId(id, reinterpret_cast<std::byte*>(bytes.data() + bytes.size() - kMessageIdBytes));
}

}  // namespace jaxcomm
