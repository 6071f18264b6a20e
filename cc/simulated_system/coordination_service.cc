#include "cc/simulated_system/coordination_service.h"

#include <algorithm>

namespace jaxcomm::simulated {

void CoordinationService::ReportEnd(Member& member) {
  member.is_known_dead = true;
  scheduler_.Wake(KeyOf(&barrier_));
  scheduler_.Wake(KeyOf(&entries_));
  CompleteBarrier();
}

Barrier CoordinationService::Enter(Member& member, bool has_failed) {
  member.has_entered = true;
  member.has_failed = has_failed;
  const uint64_t number = barrier_.number;
  CompleteBarrier();
  while (barrier_.number == number && !member.is_known_dead) scheduler_.Block(KeyOf(&barrier_));
  return member.is_known_dead ? Barrier() : barrier_;
}

void CoordinationService::CompleteBarrier() {
  std::map<uint32_t, uint64_t> members;
  bool has_failed = false;
  for (const auto& [number, member] : starts_) {
    if (member->is_known_dead) continue;
    if (!member->has_entered) return;
    members[number] = member->incarnation;
    has_failed |= member->has_failed;
  }
  if (members.empty()) return;
  if (members != barrier_.members || has_failed) ++barrier_.generation;
  barrier_.is_last = is_last_(members.size(), has_failed);
  barrier_.members = std::move(members);
  ++barrier_.number;
  for (const auto& [number, member] : starts_) member->has_entered = false;
  scheduler_.Wake(KeyOf(&barrier_));
}

void CoordinationService::Publish(const Entry& entry, Value value) {
  entries_[entry] = value;
  scheduler_.Wake(KeyOf(&entries_));
}

std::optional<CoordinationService::Value> CoordinationService::Take(const Entry& entry) {
  const auto found = entries_.find(entry);
  if (found == entries_.end()) return std::nullopt;
  const Value value = found->second;
  entries_.erase(found);
  return value;
}

std::optional<CoordinationService::Value> CoordinationService::Lookup(const Entry& entry, const Member& other,
                                                                      Nanoseconds until) {
  while (entries_.count(entry) == 0) {
    const bool has_failed = entries_.count({std::get<0>(entry), other.number, 0, "failed"}) > 0;
    if (other.is_known_dead || has_failed || scheduler_.now() >= until) return std::nullopt;
    scheduler_.Block(KeyOf(&entries_), until);
  }
  return entries_[entry];
}

}  // namespace jaxcomm::simulated
