#include "cc/search/list_scheduling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/search/move_dependencies.h"

namespace jaxcomm {
namespace {

constexpr size_t kMany = 1 << 13;  // with at least this number of moves, the schedule is improved only once

constexpr double kNear = 0.02;             // a schedule within (1 + kNear) times the busiest port's time is good enough
constexpr int kTries = 8;                  // number of tries for each rule that chooses the next move
constexpr double kMostSlack = 0.7;         // the longest wait for a port in a try, as a share of the move's seconds
constexpr size_t kShiftedMoves = 1 << 14;  // maximum number of moves, summed over all tries with shifted starts
constexpr double kMostShift = 1.0;         // the largest shift of a start time, as a share of the move's seconds

constexpr double kLeastGain = 1e-6;  // a smaller relative improvement is ignored, because it may be a rounding error

using Seconds = std::vector<double>;

// Returns the indices of the keys, sorted by key. Equal keys keep their order.
Indices SortedBy(const Seconds& key) {
  Indices order(key.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] < key[b]; });
  return order;
}

// A schedule: the moves in the order in which they occupy their ports, their start times, and the end of the last move.
struct Timetable {
  Indices order;
  Seconds starts;
  double end = 0.0;
};

class Scheduler {
 public:
  Scheduler(const PendingMoves& moves, const int64_t* late, double delay)
      : moves_(moves), needs_(MoveDependencies::Of(moves)), delay_(delay) {
    for (size_t move = 0; move < Count(); ++move) {
      if (late[moves.src[move]] != 0 || late[moves.dst[move]] != 0) late_.push_back(move);
    }
  }

  // Tries several variants and returns the schedule that ends first. If links have different rates, it may help if a
  // free port does not start a less urgent move at once, but waits a little until the other port of an urgent move is
  // free. The first tries vary how long a port waits. They also vary which move has priority: the first move in the
  // order, or the move whose port has the longest remaining work. The last tries shift the best schedule's start times
  // at random.
  Timetable Best() {
    Timetable best = Improved();
    if (Count() == 0 || Count() >= kMany) return best;
    const Seconds loads = Loads();
    const double enough = (1 + kNear) * *std::max_element(loads.begin(), loads.end());
    const auto keep = [&](Timetable found) {
      if (found.end < (1 - kLeastGain) * best.end) best = std::move(found);
    };
    for (int tried = 1; tried < 2 * kTries && best.end > enough; ++tried) {
      slack_ = kMostSlack * (tried / 2) / kTries;
      by_load_ = tried % 2 == 1;
      keep(Improved());
    }
    std::minstd_rand random;
    const auto share = [&] { return static_cast<double>(random()) / static_cast<double>(std::minstd_rand::max()); };
    for (size_t done = 0; done < kShiftedMoves && best.end > enough; done += Count()) {
      by_load_ = !by_load_;
      slack_ = kMostSlack * share();
      Seconds shifted = best.starts;
      for (size_t move = 0; move < Count(); ++move) {
        shifted[move] += kMostShift * (2 * share() - 1) * moves_.seconds[move];
      }
      keep(Forward(SortedBy(shifted)));
    }
    return best;
  }

 private:
  size_t Count() const { return Index(moves_.count); }

  template <typename Visit>
  void EachPort(size_t move, const Visit& visit) const {
    const size_t route = Index(moves_.route[move]);
    for (int64_t at = moves_.ports_of.first[route]; at < moves_.ports_of.first[route + 1]; ++at) {
      visit(Index(moves_.ports_of.members[at]), moves_.port_seconds[at]);
    }
  }

  // Returns, for each port, the sum of the seconds of its moves.
  Seconds Loads() const {
    Seconds loads(Index(moves_.ports), 0.0);
    for (size_t move = 0; move < Count(); ++move) {
      EachPort(move, [&](size_t port, double seconds) { loads[port] += seconds; });
    }
    return loads;
  }

  Timetable Improved() {
    Indices order(Count());
    for (size_t move = 0; move < Count(); ++move) order[Index(moves_.urgency[move])] = move;
    Timetable found = Forward(order);
    while (true) {
      // The backward run begins with the moves that end last, and reverses all dependencies.
      const Indices last_first = SortedBy(Negated(Ends(found.starts)));
      const Seconds latest = Negated(Ends(Run(last_first, needs_.after, needs_.before, {}).starts));
      Timetable again = Forward(SortedBy(latest));
      if (again.end >= (1 - kLeastGain) * found.end) return found;
      found = std::move(again);
      if (Count() >= kMany) return found;
    }
  }

  Timetable Forward(const Indices& order) { return Run(order, needs_.before, needs_.after, late_); }

  Seconds Ends(Seconds starts) const {
    for (size_t move = 0; move < Count(); ++move) starts[move] += moves_.seconds[move];
    return starts;
  }

  static Seconds Negated(Seconds values) {
    std::transform(values.begin(), values.end(), values.begin(), std::negate<>());
    return values;
  }

  // Computes a schedule. Among the moves whose data and ports are ready, the next to start is the first in `order` or,
  // if `by_load_` is set, the move whose port has the longest remaining work. The moves in `late` also wait until the
  // delay ends. An infinite delay ends when no other move is left, and `delay_` is set to that time. A move starts when
  // the last of its ports is free. It may reserve its ports before, by at most `slack_` times the move's seconds. Moves
  // with the same ports wait in one queue. If a move needs a port for only a part of the move's seconds, the move may
  // start before this port is free.
  Timetable Run(const Indices& order, const MoveLists& before, const MoveLists& after, const Indices& late) {
    // An ending is a time and a number. The number is a move's number if the move ends, `arrival` if the delay ends, or
    // first_route + r if the ports of route r become free.
    const size_t arrival = Count(), first_route = Count() + 1, routes = Index(moves_.routes);
    Indices place(Count()), waits(Count()), ready;
    for (size_t at = 0; at < Count(); ++at) place[order[at]] = at;
    for (size_t move = 0; move < Count(); ++move) waits[move] = before.Size(move);
    for (const size_t move : late) ++waits[move];
    for (size_t move = 0; move < Count(); ++move) {
      if (waits[move] == 0) ready.push_back(move);
    }
    std::vector<std::priority_queue<size_t, Indices, std::greater<>>> queues(routes);  // by route: indices into `order`
    std::vector<bool> is_waiting(routes), is_looked_at(routes);
    Indices looked_at;  // numbers of routes
    const auto look_at = [&](size_t route) {
      if (!is_looked_at[route]) looked_at.push_back(route);
      is_looked_at[route] = true;
    };
    Timetable made{{}, Seconds(Count(), 0.0)};
    Seconds free(Index(moves_.ports), 0.0), left = Loads();
    const auto turn_of = [&](size_t route) {
      const size_t first = queues[route].top();
      double most = 0.0;
      if (by_load_) EachPort(order[first], [&](size_t port, double) { most = std::max(most, left[port]); });
      return std::make_pair(-most, first);
    };
    // Returns the earliest start that a move's ports allow.
    const auto free_for = [&](size_t move) {
      double when = 0.0;
      EachPort(move, [&](size_t port, double seconds) {
        when = std::max(when, free[port] - (moves_.seconds[move] - seconds));
      });
      return when;
    };
    using Ending = std::pair<double, size_t>;
    std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;
    bool arrives = !late.empty();
    if (arrives && std::isfinite(delay_)) {
      endings.emplace(delay_, arrival);
      arrives = false;
    }
    double now = 0.0;
    while (true) {
      const auto release = [&](size_t other) {
        if (--waits[other] == 0) ready.push_back(other);
      };
      while (!endings.empty() && endings.top().first <= now) {
        const size_t over = endings.top().second;
        endings.pop();
        if (over == arrival) {
          std::for_each(late.begin(), late.end(), release);
        } else if (over >= first_route) {
          is_waiting[over - first_route] = false;
          look_at(over - first_route);
        } else {
          after.Each(over, release);
        }
      }
      for (const size_t move : ready) {
        const size_t route = Index(moves_.route[move]);
        queues[route].push(place[move]);
        if (!is_waiting[route]) look_at(route);
      }
      ready.clear();
      std::sort(looked_at.begin(), looked_at.end(), [&](size_t a, size_t b) { return turn_of(a) < turn_of(b); });
      for (const size_t route : looked_at) {
        is_looked_at[route] = false;
        const size_t move = order[queues[route].top()];
        const double start = std::max(now, free_for(move));
        if (start <= now + slack_ * moves_.seconds[move]) {
          queues[route].pop();
          made.order.push_back(move);
          made.starts[move] = start;
          made.end = std::max(made.end, start + moves_.seconds[move]);
          EachPort(move, [&](size_t port, double seconds) {
            free[port] = std::max(start, free[port]) + seconds;
            left[port] -= seconds;
          });
          endings.emplace(start + moves_.seconds[move], move);
        }
        if (!queues[route].empty()) {
          is_waiting[route] = true;
          endings.emplace(free_for(move), first_route + route);
        }
      }
      looked_at.clear();
      if (!endings.empty()) {
        now = endings.top().first;
      } else if (arrives) {
        arrives = false;
        delay_ = now;
        endings.emplace(now, arrival);
      } else {
        return made;
      }
    }
  }

  const PendingMoves& moves_;
  const MoveDependencies needs_;
  Indices late_;
  double delay_;
  double slack_ = 0.0;
  bool by_load_ = false;
};

// Assigns rounds to the moves of one phase. The moves are added in the order in which their ports carry them.
class Rounds {
 public:
  explicit Rounds(const PendingMoves& moves)
      : moves_(moves),
        used_(Index(moves.ports)),
        written_(Index(moves.ranks * moves.chunks)),
        read_(Index(moves.ranks * moves.chunks)) {}

  int64_t Add(size_t move) {
    const size_t source = Index(moves_.src[move] * moves_.chunks + moves_.chunk[move]);
    const size_t target = Index(moves_.dst[move] * moves_.chunks + moves_.chunk[move]);
    const bool exchange = moves_.kind[move] == MoveKind::kExchange;
    const int64_t* first = moves_.ports_of.members + moves_.ports_of.first[moves_.route[move]];
    const int64_t* last = moves_.ports_of.members + moves_.ports_of.first[moves_.route[move] + 1];
    int64_t round = std::max({written_[source], written_[target], read_[target]});
    if (exchange) round = std::max(round, read_[source]);
    std::for_each(first, last, [&](int64_t port) { round = std::max(round, used_[Index(port)]); });
    std::for_each(first, last, [&](int64_t port) { used_[Index(port)] = round + 1; });
    read_[source] = std::max(read_[source], round + 1);
    written_[target] = round + 1;
    if (exchange) read_[target] = written_[source] = round + 1;
    return round;
  }

 private:
  const PendingMoves& moves_;
  std::vector<int64_t> used_;            // by port, the port's first free round
  std::vector<int64_t> written_, read_;  // by rank and chunk, the first rounds after the last write and the last read
};

}  // namespace

Status FindRounds(const PendingMoves& moves, const int64_t* late, double delay, const MoveRounds& rounds) {
  const auto is_below = [](int64_t index, int64_t count) { return 0 <= index && index < count; };
  for (int64_t move = 0; move < moves.count; ++move) {
    const int64_t route = moves.route[move];
    if (!is_below(moves.src[move], moves.ranks) || !is_below(moves.dst[move], moves.ranks) ||
        !is_below(moves.chunk[move], moves.chunks) || moves.ports_of.first[route] == moves.ports_of.first[route + 1]) {
      return InvalidArgument("move " + std::to_string(move) + " has an unknown rank or chunk, or no port");
    }
  }
  const Indices order = Scheduler(moves, late, delay).Best().order;
  const bool nobody_late = std::all_of(late, late + moves.ranks, [](int64_t each) { return each == 0; });
  std::vector<bool> joined(late, late + moves.ranks);
  Rounds first(moves), second(moves);
  for (const size_t move : order) {
    const size_t src = Index(moves.src[move]), dst = Index(moves.dst[move]);
    // A move shares a rank with each move that it waits for, so it suffices to look at the move's two ranks.
    const bool in_second = nobody_late || joined[src] || joined[dst];
    if (in_second) joined[src] = joined[dst] = true;
    rounds.phase[move] = in_second;
    rounds.round[move] = (in_second ? second : first).Add(move);
  }
  return Status();
}

}  // namespace jaxcomm
