#include "cc/simulate/message_times.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <vector>

namespace jaxcomm {

void FindTimes(const MessageNetwork& network, const MessageTimes& times) {
  std::vector<int64_t> waits(network.waits, network.waits + network.nodes);
  std::vector<double> idle(static_cast<size_t>(network.links), -std::numeric_limits<double>::infinity());
  // The head's arrival at its next link, the message, the number of the link.
  using Head = std::tuple<double, int64_t, int64_t>;
  std::priority_queue<Head, std::vector<Head>, std::greater<Head>> on_the_way;
  std::vector<int64_t> can_start;
  for (int64_t node = 0; node < network.nodes; ++node) {
    if (waits[static_cast<size_t>(node)] == 0) can_start.push_back(node);
  }
  const auto release = [&](const IndexLists& lists, int64_t now, double when) {
    for (int64_t at = lists.first[now]; at < lists.first[now + 1]; ++at) {
      const int64_t after = lists.members[at];
      times.start[after] = std::max(times.start[after], when);
      if (--waits[static_cast<size_t>(after)] == 0) can_start.push_back(after);
    }
  };
  while (!can_start.empty() || !on_the_way.empty()) {
    int64_t now;
    if (!can_start.empty()) {
      now = can_start.back();
      can_start.pop_back();
      times.free[now] += times.start[now];
      if (network.stages.first[now] < network.stages.first[now + 1]) {
        on_the_way.emplace(times.start[now], now, network.stages.first[now]);
        continue;
      }
    } else {  // no message can overtake the first: all others start later
      auto [head, message, place] = on_the_way.top();
      on_the_way.pop();
      now = message;
      const int64_t entry = network.stages.members[place] * network.messages + now;
      double& idle_from = idle[static_cast<size_t>(network.link[entry])];
      head = std::max(head, idle_from);
      idle_from = head + network.taken[entry];
      times.free[now] = std::max(times.free[now], head + network.slowest[entry]);
      if (place + 1 < network.stages.first[now + 1]) {
        on_the_way.emplace(head, now, place + 1);
        continue;
      }
    }
    times.end[now] += times.free[now];
    release(network.after_end, now, times.end[now]);
    release(network.after_free, now, times.free[now]);
  }
}

}  // namespace jaxcomm
