// The notices that the Rails of two processes send to each other. A notice is a character for its kind, followed by
// numbers (little_endian.h).
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

// Numbered notices (numbered_notices.h), with their content:
constexpr char kNotice = 'n';    // a notice of the user of Rails
constexpr char kMessage = 'm';   // a small message: id and bytes
constexpr char kReceived = 'r';  // ids of large messages that have arrived; their sender may free them
// The number of fences of each rail. Asks the other side to resend each message that was sent over a rail before the
// rail's last fence.
constexpr char kAgain = 'a';
// Notices that are not numbered, with their content. Such a notice is lost if its rail fails.
constexpr char kFences = 'f';   // the number of numbered notices taken, and the number of fences of each rail
constexpr char kBrought = 'b';  // id of a message that this rail delivered; kReceived repeats it in case the rail fails
constexpr char kPosted = 'p';   // number of fences; messages posted before Restore are now posted on this rail, too
constexpr char kAsk = 'q';      // empty; the acknowledgement by the host shows that the rail works

inline void AppendMessageId(std::string& bytes, const MessageId& id) {
  bytes.resize(bytes.size() + kMessageIdBytes);
  EncodeMessageId(id, reinterpret_cast<std::byte*>(bytes.data() + bytes.size() - kMessageIdBytes));
}

}  // namespace jaxcomm
