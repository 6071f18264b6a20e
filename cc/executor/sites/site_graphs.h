// SiteGraphs has the message graphs of one MessageSite. GraphCache has the graphs of all MessageSites of a call site.
// Making a graph takes milliseconds. Therefore sites with the same lists share graphs, and a site that may never be
// called makes its graphs at its first call.
//
//   SiteGraphs graphs(cache);                                   // `cache` is shared by all sites of the call site
//   Status status = graphs.Make(collective, ranks, layout);     // before the first call
//   const MessageGraph& graph = graphs[local];                  // the graph of ranks.locals()[local]
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/sites/message_graph.h"
#include "cc/executor/sites/site_leaves.h"
#include "cc/executor/sites/site_ranks.h"

namespace jaxcomm {

// Shares message graphs among the MessageSites of a call site. A graph is kept while a site uses it.
class GraphCache {
 public:
  // Returns the graph of a rank's list. Makes the graph if no site uses it yet. Fails if the list is invalid.
  Result<std::shared_ptr<const MessageGraph>> Find(const Collective& collective, const SiteRanks& ranks,
                                                   const SiteRanks::Local& local, const Layout& layout);

 private:
  std::mutex mutex_;
  // The key is the list's name, the rank's number in the list, and whether the list's ranks are on several hosts.
  std::map<std::tuple<std::string, uint32_t, bool>, std::weak_ptr<const MessageGraph>> graphs_;
};

class SiteGraphs {
 public:
  explicit SiteGraphs(std::shared_ptr<GraphCache> cache) : cache_(std::move(cache)) {}

  // Makes the graphs, if they are not made yet. Fails if a list is invalid. If memory runs out, the next Make tries
  // again.
  Status Make(const Collective& collective, const SiteRanks& ranks, const Layout& layout);
  bool are_made() const { return are_made_; }
  const MessageGraph& operator[](size_t local) const { return *by_local_[local]; }
  const std::shared_ptr<GraphCache>& cache() const { return cache_; }

 private:
  const std::shared_ptr<GraphCache> cache_;
  std::once_flag once_;
  Status status_;
  std::vector<std::shared_ptr<const MessageGraph>> by_local_;
  std::atomic<bool> are_made_{false};
};

}  // namespace jaxcomm
