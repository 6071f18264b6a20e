#include "cc/executor/decide/lost_rails.h"

#include <algorithm>
#include <vector>

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

std::optional<uint32_t> LostRails::Find(const DecidedSite& site) const {
  if (is_empty_ || site.selector()->lost_rails().empty()) return std::nullopt;
  const std::optional<Lack> lack = FindLack(site);
  if (!lack) return std::nullopt;
  for (const ScheduleSelector::LostRail& lost : site.selector()->lost_rails()) {
    if (lost.rail == lack->rail && site.place(lost.rank).host == lack->host) return lost.schedule;
  }
  return std::nullopt;
}

std::optional<LostRails::Lack> LostRails::FindLack(const DecidedSite& site) const {
  std::vector<DecidedSite::Place> places;
  for (uint32_t rank = 0; rank < site.num_ranks(); ++rank) places.push_back(site.place(rank));
  const auto is_here = [&](const DecidedSite::Place& place) { return place.process == site.process(); };
  const uint32_t own = std::find_if(places.begin(), places.end(), is_here)->host;
  // `hosts`: all other hosts. `lacking`: hosts with a process to which the rail is fenced. `open`: hosts with a process
  // to which the rail is open.
  std::set<uint32_t> hosts, lacking, open;
  std::optional<uint32_t> rail;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [process, host] : places) {
      if (host == own) continue;
      hosts.insert(host);
      bool is_open = true;
      for (const auto& [lost, processes] : lost_) {
        if (processes.count(process) == 0) continue;
        if (lost != rail.value_or(lost)) return std::nullopt;
        rail = lost;
        is_open = false;
      }
      (is_open ? open : lacking).insert(host);
    }
  }
  const auto is_open = [&](uint32_t host) { return open.count(host) > 0; };
  if (!rail || hosts.size() < 2 || std::any_of(lacking.begin(), lacking.end(), is_open)) return std::nullopt;
  if (lacking == hosts) return Lack{own, *rail};
  return lacking.size() == 1 ? std::optional<Lack>({*lacking.begin(), *rail}) : std::nullopt;
}

}  // namespace jaxcomm
