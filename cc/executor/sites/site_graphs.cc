#include "cc/executor/sites/site_graphs.h"

#include <iterator>

namespace jaxcomm {

Result<std::shared_ptr<const MessageGraph>> GraphCache::Find(const Collective& collective, const SiteRanks& ranks,
                                                             const SiteRanks::Local& local, const Layout& layout) {
  if (!local.list) return std::make_shared<const MessageGraph>();
  const bool is_between_hosts = ranks.IsBetweenHosts(local.rank);
  const std::tuple<std::string, uint32_t, bool> key(ranks.list(ranks[local.rank].group), local.list->rank(),
                                                    is_between_hosts);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Drops the entries of graphs that are no longer in use.
    for (auto at = graphs_.begin(); at != graphs_.end();) {
      at = at->second.expired() ? graphs_.erase(at) : std::next(at);
    }
    if (const auto at = graphs_.find(key); at != graphs_.end()) {
      if (auto kept = at->second.lock()) return std::shared_ptr<const MessageGraph>(std::move(kept));
    }
  }
  Result<MessageGraph> graph =
      MessageGraph::Make(*local.list, layout, collective.kind,
                         {collective.loss.has_value(),
                          collective.loss && collective.loss->has_reports() ? collective.loss->segment_bytes : 0,
                          is_between_hosts, collective.is_in_place});
  if (!graph.ok()) return graph.status();
  const auto made = std::make_shared<const MessageGraph>(std::move(graph.value()));
  std::lock_guard<std::mutex> lock(mutex_);
  graphs_[key] = made;
  return made;
}

Status SiteGraphs::Make(const Collective& collective, const SiteRanks& ranks, const Layout& layout) {
  std::call_once(once_, [&] {
    std::vector<std::shared_ptr<const MessageGraph>> made;
    for (const SiteRanks::Local& local : ranks.locals()) {
      const auto graph = cache_->Find(collective, ranks, local, layout);
      if (!graph.ok()) status_ = graph.status();
      if (!graph.ok()) break;
      made.push_back(graph.value());
    }
    by_local_ = std::move(made);
    are_made_ = true;
  });
  return status_;
}

}  // namespace jaxcomm
