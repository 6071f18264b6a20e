// Places messages in slots of this process's memory. A message lies in one slot, which all its receivers read. Messages
// to the same set of processes may share a slot. A slot is free again when all receivers have released all messages in
// the slot.
//
//   std::optional<Place> place = slots.Reserve(receivers, bytes);   // nullopt: try again after a Release
//   ... write there ...; slots.Release(self, place->slot);          // ends the writer's hold
//   slots.Release(receiver, slot);                                  // false: the receiver holds no message there
//
// No receiver holds messages in more slots than its share, so a slow receiver takes no slots from the other receivers.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace jaxcomm::shm {

struct Place {
  uint32_t slot, offset;
};

class MessageSlots {
 public:
  MessageSlots(uint32_t self, uint32_t processes, uint32_t slots);

  // `to`: the receiving process of each message. A process may be listed more than once.
  std::optional<Place> Reserve(const std::vector<uint32_t>& to, int64_t bytes);
  bool Release(uint32_t process, uint32_t slot);
  uint32_t share() const { return share_; }
  uint32_t count() const { return static_cast<uint32_t>(slots_.size()); }
  // Releases all messages that an ended process holds.
  void Forget(uint32_t process);

 private:
  struct Slot {
    std::vector<uint32_t> holds;      // number of messages in the slot that a process has not released, by process
    uint32_t total = 0;               // sum of holds
    std::vector<uint32_t> processes;  // receivers of the messages in the slot
    int64_t used = 0;                 // number of bytes taken
  };

  void Hold(uint32_t process, Slot& slot);
  void Free(uint32_t slot);

  const uint32_t self_, share_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;                        // free slots; the last is used first, as it may be cached
  std::map<std::vector<uint32_t>, uint32_t> open_;    // for each set of receivers: the slot of their next messages
  std::vector<uint32_t> slots_held_, messages_held_;  // numbers of slots and messages that a process holds, by process
};

}  // namespace jaxcomm::shm
