#include "cc/search/tree_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "cc/search/tree_changes.h"
#include "cc/search/tree_timetable.h"

namespace jaxcomm {
namespace {

// The first and the last temperature, as shares of a message's time. A change that increases the cost by one
// temperature is accepted with probability 1/e.
constexpr double kHot = 0.01, kCold = 0.0005;

bool IsNetwork(const TreeNetwork& network) {
  if (network.ranks < 2 || network.chunks < 1 || network.links < 0) return false;
  const int64_t pairs = network.ranks * network.ranks;
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  const auto is_link = [&](int64_t link) { return -1 <= link && link < network.links; };
  return is_time(network.alpha) && std::all_of(network.ready, network.ready + network.ranks, is_time) &&
         std::all_of(network.port_s, network.port_s + pairs, is_time) &&
         std::all_of(network.link_s, network.link_s + kStages * pairs, is_time) &&
         std::all_of(network.link, network.link + kStages * pairs, is_link);
}

bool AreTrees(const TreeNetwork& network, const TreeSolution& solution) {
  const auto is_rank = [&](int64_t rank) { return 0 <= rank && rank < network.ranks; };
  for (int64_t chunk = 0; chunk < network.chunks; ++chunk) {
    const int64_t* up = &solution.up[static_cast<size_t>(chunk * network.ranks)];
    const int64_t* down = &solution.down[static_cast<size_t>(chunk * network.ranks)];
    const int64_t root = std::find(up, up + network.ranks, -1) - up;
    for (const int64_t* parents : {up, down}) {
      for (int64_t rank = 0; rank < network.ranks; ++rank) {
        int64_t steps = 0, at = rank;
        while (is_rank(at) && at != root && steps <= network.ranks) at = parents[at], ++steps;
        if (root == network.ranks || at != root || parents[root] != -1) return false;
      }
    }
    const int64_t partner = solution.partner[static_cast<size_t>(chunk)];
    if (partner != -1 && !(is_rank(partner) && up[partner] == root && down[partner] == root)) return false;
  }
  std::vector<int64_t> messages = solution.order;
  std::sort(messages.begin(), messages.end());
  for (size_t at = 0; at < messages.size(); ++at) {
    if (messages[at] != static_cast<int64_t>(at)) return false;
  }
  return true;
}

}  // namespace

Status ImproveTrees(const TreeNetwork& network, int64_t tries, uint64_t seed, const ChunkTrees& trees,
                    const TreeTimes& times) {
  if (!IsNetwork(network)) return InvalidArgument("a network needs two ranks, a chunk, known links, and finite times");
  const int64_t cells = network.ranks * network.chunks;
  TreeSolution current{{trees.up, trees.up + cells},
                       {trees.down, trees.down + cells},
                       {trees.partner, trees.partner + network.chunks},
                       {trees.order, trees.order + 2 * cells}};
  if (!AreTrees(network, current)) {
    return InvalidArgument("up and down must be trees of every chunk with one root, and order all messages once");
  }
  TreeTimetable timetable(network);
  TreeChanges changes(network.ranks, network.chunks, seed);
  double cost = timetable.Cost(current);
  TreeSolution best = current, changed = current;
  std::pair<double, double> least{timetable.latest(), cost};
  const double unit = network.alpha + *std::max_element(network.port_s, network.port_s + network.ranks * network.ranks);
  for (int64_t done = 0; done < tries; ++done) {
    if (!changes.Try(changed)) continue;
    const double temperature =
        unit * kHot * std::pow(kCold / kHot, static_cast<double>(done) / static_cast<double>(tries));
    const double found = timetable.Cost(changed);
    if (found <= cost || changes.Share() < std::exp((cost - found) / temperature)) {
      current = changed;
      cost = found;
      if (const std::pair<double, double> now{timetable.latest(), found}; now < least) {
        best = current;
        least = now;
      }
    } else {
      changed = current;
    }
  }
  timetable.Cost(best);
  std::copy(timetable.starts().begin(), timetable.starts().end(), times.start);
  std::copy(timetable.ends().begin(), timetable.ends().end(), times.end);
  std::copy(best.up.begin(), best.up.end(), trees.up);
  std::copy(best.down.begin(), best.down.end(), trees.down);
  std::copy(best.partner.begin(), best.partner.end(), trees.partner);
  std::copy(best.order.begin(), best.order.end(), trees.order);
  return Status();
}

}  // namespace jaxcomm
