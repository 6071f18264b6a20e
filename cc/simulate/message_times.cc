#include "cc/simulate/message_times.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <vector>

namespace jaxcomm {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// A shared link. `idle` is the time from which the link is idle. `waiting` has the numbers of the messages that have
// reached the link.
struct Link {
  double idle = kNever;
  bool is_due = false;  // whether an event of this link is queued
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> waiting;
};

}  // namespace

void FindTimes(const MessageNetwork& network, const MessageTimes& times) {
  std::vector<int64_t> waits(network.waits, network.waits + network.nodes);
  std::vector<Link> links(static_cast<size_t>(network.links));
  // An event is a time, a message and a link: at the event's time the message reaches the link. If the message is -1,
  // the link can take the next waiting message at the event's time.
  using Event = std::tuple<double, int64_t, int64_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
  std::vector<int64_t> next_stage(network.stages.first, network.stages.first + network.messages);
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
  const auto arrive = [&](int64_t now) {
    times.end[now] += times.free[now];
    release(network.after_end, now, times.end[now]);
    release(network.after_free, now, times.free[now]);
  };
  const auto entry_of = [&](int64_t message) {
    return network.stages.members[next_stage[static_cast<size_t>(message)]] * network.messages + message;
  };
  // Returns the earliest time at which the link can take the message. The link may still be busy at that time if it
  // needs only a part of the message's time (`taken` is less than `slowest`).
  const auto can_pass = [&](const Link& link, int64_t message) {
    const int64_t entry = entry_of(message);
    return link.idle - (network.slowest[entry] - network.taken[entry]);
  };
  while (!can_start.empty() || !events.empty()) {
    if (!can_start.empty()) {
      const int64_t now = can_start.back();
      can_start.pop_back();
      times.free[now] += times.start[now];
      if (network.stages.first[now] < network.stages.first[now + 1]) {
        events.emplace(times.start[now], now, network.link[entry_of(now)]);
      } else {
        arrive(now);
      }
      continue;
    }
    const auto [time, reaching, number] = events.top();
    events.pop();
    Link& link = links[static_cast<size_t>(number)];
    if (reaching >= 0) {
      link.waiting.push(reaching);
      if (link.is_due) continue;
    }
    link.is_due = true;
    const int64_t first = link.waiting.top();
    const double head = std::max(time, can_pass(link, first));
    if (head > time) {
      events.emplace(head, -1, number);
      continue;
    }
    link.waiting.pop();
    const int64_t entry = entry_of(first);
    link.idle = std::max(head, link.idle) + network.taken[entry];
    link.is_due = !link.waiting.empty();
    if (link.is_due) events.emplace(std::max(time, can_pass(link, link.waiting.top())), -1, number);
    times.free[first] = std::max(times.free[first], head + network.slowest[entry]);
    if (++next_stage[static_cast<size_t>(first)] < network.stages.first[first + 1]) {
      events.emplace(head, first, network.link[entry_of(first)]);
    } else {
      arrive(first);
    }
  }
}

}  // namespace jaxcomm
