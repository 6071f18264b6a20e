#include "cc/executor/lost_rails.h"

#include <algorithm>

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
  std::set<uint32_t> hosts, lacking, open;  // but this one; with a process whose rail is fenced; with one whose is open
  std::optional<uint32_t> rail;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const MessageSite::Rank& rank : site.ranks()) {
      if (rank.host == own) continue;
      hosts.insert(rank.host);
      bool is_open = true;
      for (const auto& [lost, processes] : lost_) {
        if (processes.count(rank.process) == 0) continue;
        if (lost != rail.value_or(lost)) return std::nullopt;
        rail = lost;
        is_open = false;
      }
      (is_open ? open : lacking).insert(rank.host);
    }
  }
  const auto is_open = [&](uint32_t host) { return open.count(host) > 0; };
  if (!rail || hosts.size() < 2 || std::any_of(lacking.begin(), lacking.end(), is_open)) return std::nullopt;
  if (lacking == hosts) return Lack{own, *rail};
  return lacking.size() == 1 ? std::optional<Lack>({*lacking.begin(), *rail}) : std::nullopt;
}

}  // namespace jaxcomm
