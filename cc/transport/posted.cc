#include "cc/transport/posted.h"

#include <string>

namespace jaxcomm {

std::string NameOf(const MessageId& id) {
  return "segment " + std::to_string(id.segment) + " of message " + std::to_string(id.index) + " from rank " +
         std::to_string(id.from) + " to rank " + std::to_string(id.to) + " of call " + std::to_string(id.call.launch) +
         "." + std::to_string(id.call.site) + "." + std::to_string(id.call.iteration);
}

Status WrongSize(const MessageId& id, int64_t bytes, int64_t expected) {
  return InvalidArgument(NameOf(id) + " with " + std::to_string(bytes) + " bytes where " + std::to_string(expected) +
                         " are expected");
}

Status WrongSender(const MessageId& id, uint32_t expected) {
  return InvalidArgument(NameOf(id) + ", which only process " + std::to_string(expected) + " may send");
}

std::shared_ptr<std::byte> EarlyMessages::Add(uint32_t process, const MessageId& id, int64_t bytes) {
  int64_t& kept = bytes_[process];
  if (kept + bytes + kOverhead > Transport::kMaxEarlyBytes) return nullptr;
  kept += bytes + kOverhead;
  const std::shared_ptr<std::byte> data(new std::byte[static_cast<size_t>(bytes)], std::default_delete<std::byte[]>());
  messages_.Add(id, {process, bytes, data});
  return data;
}

std::optional<EarlyMessages::Message> EarlyMessages::Take(const MessageId& id) {
  std::optional<Message> taken = messages_.Take(id);
  if (taken) Release(*taken);
  return taken;
}

void EarlyMessages::Cancel(const CallId& call) {
  messages_.TakeCall(call, [this](const MessageId&, const Message& message) { Release(message); });
}

void EarlyMessages::Drop(uint32_t process) {
  messages_.TakeIf([process](const Message& message) { return message.process == process; },
                   [this](const MessageId&, const Message& message) { Release(message); });
}

void EarlyMessages::DropIncomplete(uint32_t process) {
  messages_.TakeIf([process](const Message& message) { return message.process == process && !message.is_complete; },
                   [this](const MessageId&, const Message& message) { Release(message); });
}

}  // namespace jaxcomm
