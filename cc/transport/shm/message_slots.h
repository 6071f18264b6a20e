// The slots of this process's memory that hold messages, and their receivers. A message lies in one slot for all its
// receivers; messages for the same processes share a slot, which is free again when all of them have released all.
//
//   std::optional<Place> place = slots.Reserve(receivers, bytes);   // none: try again after a Release
//   ... write there ...; slots.Release(self, place->slot);          // the writer's own hold
//   slots.Release(receiver, slot);                                  // false: it holds nothing there
//
// No process holds messages in more slots than its share, so a slow one leaves the others theirs. Not thread-safe.
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

  // `to`: one entry for each message, so a process may come twice.
  std::optional<Place> Reserve(const std::vector<uint32_t>& to, int64_t bytes);
  bool Release(uint32_t process, uint32_t slot);
  uint32_t share() const { return share_; }
  uint32_t count() const { return static_cast<uint32_t>(slots_.size()); }
  // It has ended: what it holds is free.
  void Forget(uint32_t process);

 private:
  struct Slot {
    std::vector<uint32_t> holds;      // of each process: messages that it has not released
    uint32_t total = 0;               // of holds
    std::vector<uint32_t> processes;  // that its messages are for
    int64_t used = 0;                 // bytes
  };

  void Hold(uint32_t process, Slot& slot);
  void Free(uint32_t slot);

  const uint32_t self_, share_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;                        // the one used last is taken first: it is in the cache
  std::map<std::vector<uint32_t>, uint32_t> open_;    // the slot that takes further messages for these processes
  std::vector<uint32_t> slots_held_, messages_held_;  // by each process
};

}  // namespace jaxcomm::shm
