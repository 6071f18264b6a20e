#include "cc/executor/lost_rails.h"

namespace jaxcomm {

void LostRails::Change(uint32_t process, uint32_t rail, bool is_open) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_open) {
    lost_[rail].erase(process);
    if (lost_[rail].empty()) lost_.erase(rail);
  } else {
    lost_[rail].insert(process);
  }
  is_empty_ = lost_.empty();
}

void LostRails::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  lost_.clear();
  is_empty_ = true;
}

std::optional<uint32_t> LostRails::Find(const MessageSite& site) const {
  if (is_empty_ || site.selector()->fences().empty()) return std::nullopt;
  const std::optional<Lack> lack = FindLack(site);
  if (!lack) return std::nullopt;
  for (const ScheduleSelector::Fence& fence : site.selector()->fences()) {
    if (fence.rail == lack->rail && site.ranks()[fence.rank].host == lack->host) return fence.schedule;
  }
  return std::nullopt;
}

std::optional<LostRails::Lack> LostRails::FindLack(const MessageSite& site) const {
  const uint32_t own = site.ranks()[site.locals()[0].rank].host;
  std::set<uint32_t> hosts, lacking;  // but this one
  std::optional<uint32_t> rail;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const MessageSite::Rank& rank : site.ranks()) {
      if (rank.host == own) continue;
      hosts.insert(rank.host);
      for (const auto& [lost, processes] : lost_) {
        if (processes.count(rank.process) == 0) continue;
        if (lost != rail.value_or(lost)) return std::nullopt;
        rail = lost;
        lacking.insert(rank.host);
      }
    }
  }
  if (!rail || hosts.size() < 2) return std::nullopt;
  if (lacking == hosts) return Lack{own, *rail};
  return lacking.size() == 1 ? std::optional<Lack>({*lacking.begin(), *rail}) : std::nullopt;
}

}  // namespace jaxcomm
