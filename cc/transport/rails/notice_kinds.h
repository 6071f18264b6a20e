// The notices between the rails of two processes: a letter, and numbers (little_endian.h).
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
constexpr char kNotice = 'n';    // of the users of Rails
constexpr char kMessage = 'm';   // a small one of theirs: its id and its bytes
constexpr char kReceived = 'r';  // large messages that the other side need not keep: their ids
constexpr char kAgain = 'a';     // the fences of each rail: send again the messages that went over it before
// Not numbered, for one rail:
constexpr char kFences = 'f';   // the number of numbered notices taken, and the fences of each rail
constexpr char kBrought = 'b';  // messages that this rail has brought; kReceived repeats them, in case it fails
constexpr char kPosted = 'p';   // messages posted before this rail was restored are posted on it, too; its fences
constexpr char kAsk = 'q';      // only for the answer of the host

inline void AppendMessageId(std::string& bytes, const MessageId& id) {
  bytes.resize(bytes.size() + kMessageIdBytes);
  EncodeMessageId(id, reinterpret_cast<std::byte*>(bytes.data() + bytes.size() - kMessageIdBytes));
}

}  // namespace jaxcomm
