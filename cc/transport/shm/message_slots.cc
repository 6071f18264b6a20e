#include "cc/transport/shm/message_slots.h"

#include <algorithm>

#include "cc/transport/shm/layout.h"

namespace jaxcomm::shm {

MessageSlots::MessageSlots(uint32_t self, uint32_t processes, uint32_t slots)
    : self_(self),
      share_(processes > 1 ? slots / (processes - 1) : slots),
      slots_(slots),
      slots_held_(processes),
      messages_held_(processes) {
  for (uint32_t slot = slots; slot-- > 0;) {
    slots_[slot].holds.resize(processes);
    free_.push_back(slot);
  }
}

std::optional<Place> MessageSlots::Reserve(const std::vector<uint32_t>& to, int64_t bytes) {
  std::vector<uint32_t> processes = to;
  std::sort(processes.begin(), processes.end());
  processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
  for (const uint32_t process : to) {
    if (messages_held_[process] + to.size() > kReleases) return std::nullopt;
  }
  auto open = open_.find(processes);
  if (open != open_.end() && slots_[open->second].used + bytes > kSlotBytes) {
    open_.erase(open);
    open = open_.end();
  }
  if (open == open_.end() && free_.empty()) return std::nullopt;
  const uint32_t index = open == open_.end() ? free_.back() : open->second;
  Slot& slot = slots_[index];
  for (const uint32_t process : processes) {
    if (slot.holds[process] == 0 && slots_held_[process] >= share_) return std::nullopt;
  }
  if (open == open_.end()) {
    free_.pop_back();
    slot.used = 0;
    slot.processes = processes;
    open_[processes] = index;
  }
  for (const uint32_t process : to) Hold(process, slot);
  Hold(self_, slot);
  const Place place = {index, static_cast<uint32_t>(slot.used)};
  slot.used += (bytes + 63) / 64 * 64;
  return place;
}

void MessageSlots::Hold(uint32_t process, Slot& slot) {
  if (slot.holds[process]++ == 0) ++slots_held_[process];
  ++messages_held_[process];
  ++slot.total;
}

bool MessageSlots::Release(uint32_t process, uint32_t slot) {
  if (slot >= slots_.size() || slots_[slot].holds[process] == 0) return false;
  if (--slots_[slot].holds[process] == 0) --slots_held_[process];
  --messages_held_[process];
  if (--slots_[slot].total == 0) Free(slot);
  return true;
}

void MessageSlots::Free(uint32_t slot) {
  const auto open = open_.find(slots_[slot].processes);
  if (open != open_.end() && open->second == slot) open_.erase(open);
  free_.push_back(slot);
}

void MessageSlots::Forget(uint32_t process) {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    while (Release(process, slot)) {
    }
  }
}

}  // namespace jaxcomm::shm
