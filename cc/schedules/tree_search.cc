#include "cc/schedules/tree_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace jaxcomm {
namespace {

// What a longer time costs at first and at last, as the share of a message's time that is then accepted often.
constexpr double kHot = 0.01, kCold = 0.0005;

using Numbers = std::vector<int64_t>;

struct Solution {
  Numbers up, down, partner, order;
};

// Whether a rank gets what `top` has, along the parents of one chunk.
bool IsBelow(const int64_t* parents, int64_t rank, int64_t top) {
  while (rank >= 0 && rank != top) rank = parents[rank];
  return rank == top;
}

class Timetable {
 public:
  explicit Timetable(const TreeNetwork& network)
      : network_(network),
        cells_(network.ranks * network.chunks),
        starts_(2 * static_cast<size_t>(cells_)),
        ends_(starts_.size()),
        place_(starts_.size()) {}

  // Places all messages; what counts is when all is done, and, as that seldom changes, when ranks are done with chunks.
  double Cost(const Solution& solution) {
    solution_ = &solution;
    const auto cells = static_cast<size_t>(cells_);
    port_free_.assign(4 * static_cast<size_t>(network_.ranks), 0.0);
    link_free_.assign(static_cast<size_t>(network_.links), 0.0);
    waits_.assign(cells, 0);
    first_.assign(cells, -1);
    next_.assign(cells, -1);
    ready_.resize(cells);
    std::fill(starts_.begin(), starts_.end(), -1.0);
    std::fill(ends_.begin(), ends_.end(), -1.0);
    for (size_t at = 0; at < starts_.size(); ++at) place_[static_cast<size_t>(solution.order[at])] = at;
    for (int64_t cell = 0; cell < cells_; ++cell) {
      const int64_t rank = cell % network_.ranks, base = cell - rank, up = At(solution.up, cell);
      At(ready_, cell) = network_.ready[rank];
      if (up < 0) continue;
      if (IsPartner(cell)) {
        ++At(waits_, cell);
      } else {
        ++At(waits_, base + up);
        const int64_t from = base + At(solution.down, cell);
        At(next_, cell) = At(first_, from);
        At(first_, from) = cell;
      }
    }
    latest_ = sum_ = 0.0;
    leaves_.clear();
    for (int64_t cell = 0; cell < cells_; ++cell) {
      if (At(waits_, cell) == 0) leaves_.push_back(cell);
    }
    for (const int64_t cell : leaves_) IsSummed(cell);
    while (!pending_.empty()) Place(Earliest());
    return latest_ + sum_ / static_cast<double>(cells_);
  }

  double latest() const { return latest_; }
  const std::vector<double>& starts() const { return starts_; }
  const std::vector<double>& ends() const { return ends_; }

 private:
  using Pending = std::tuple<double, size_t, int64_t>;  // when it may start, its place in the order, the message

  template <typename T>
  static T& At(std::vector<T>& values, int64_t index) {
    return values[static_cast<size_t>(index)];
  }
  template <typename T>
  static const T& At(const std::vector<T>& values, int64_t index) {
    return values[static_cast<size_t>(index)];
  }

  bool IsPartner(int64_t cell) const { return At(solution_->partner, cell / network_.ranks) == cell % network_.ranks; }

  void Await(int64_t message, double time) {
    time = std::max(time, network_.ready[Ends(message).second]);
    pending_.emplace_back(time, At(place_, message), message);
    std::push_heap(pending_.begin(), pending_.end(), std::greater<>());
  }

  // A rank has added up all that its children have sent.
  void IsSummed(int64_t cell) {
    const int64_t base = cell - cell % network_.ranks, up = At(solution_->up, cell);
    if (up >= 0) {
      Await(2 * cell, IsPartner(cell) ? std::max(At(ready_, cell), At(ready_, base + up)) : At(ready_, cell));
      return;
    }
    const int64_t partner = At(solution_->partner, cell / network_.ranks);
    if (partner < 0) {
      HasTotal(cell, At(ready_, cell));
    } else if (--At(waits_, base + partner) == 0) {
      IsSummed(base + partner);
    }
  }

  void HasTotal(int64_t cell, double time) {
    latest_ = std::max(latest_, time);
    sum_ += time;
    for (int64_t child = At(first_, cell); child >= 0; child = At(next_, child)) Await(2 * child + 1, time);
  }

  // The source and the destination of a message.
  std::pair<int64_t, int64_t> Ends(int64_t message) const {
    const int64_t cell = message / 2, rank = cell % network_.ranks;
    if (message % 2 != 0) return {At(solution_->down, cell), rank};
    return {rank, At(solution_->up, cell)};
  }

  // When the ports of a message are free.
  double& Sending(int64_t src, int64_t dst) { return At(port_free_, 4 * src + 2 * Remote(src, dst)); }
  double& Receiving(int64_t src, int64_t dst) { return At(port_free_, 4 * dst + 2 * Remote(src, dst) + 1); }
  int64_t Remote(int64_t src, int64_t dst) const { return network_.remote[src * network_.ranks + dst] != 0; }

  double PortsFree(int64_t src, int64_t dst) { return std::max(Sending(src, dst), Receiving(src, dst)); }

  // Of the messages that can start first, the first one in the order. Times in the heap are too early where a port has
  // been taken since, so they are looked at again.
  Pending Earliest() {
    while (true) {
      std::pop_heap(pending_.begin(), pending_.end(), std::greater<>());
      const auto [time, place, message] = pending_.back();
      pending_.pop_back();
      const auto [src, dst] = Ends(message);
      double start = std::max(time, PortsFree(src, dst));
      if (IsExchange(message)) start = std::max(start, PortsFree(dst, src));
      if (start <= time) return {time, place, message};
      pending_.emplace_back(start, place, message);
      std::push_heap(pending_.begin(), pending_.end(), std::greater<>());
    }
  }

  bool IsExchange(int64_t message) const { return message % 2 == 0 && IsPartner(message / 2); }

  // When a message arrives that starts now.
  double Send(int64_t src, int64_t dst, double start) {
    const int64_t pairs = network_.ranks * network_.ranks;
    const double port_s = network_.port_s[src * network_.ranks + dst];
    double head = start, end = start + port_s;
    for (int64_t at = src * network_.ranks + dst; at < kStages * pairs; at += pairs) {
      if (network_.link[at] < 0) continue;
      double& free = At(link_free_, network_.link[at]);
      head = std::max(head, free);
      free = head + network_.link_s[at];
      end = std::max({end, free, head + port_s});
    }
    Sending(src, dst) = Receiving(src, dst) = end += network_.alpha;
    return end;
  }

  void Place(const Pending& pending) {
    const auto [start, place, message] = pending;
    const auto [src, dst] = Ends(message);
    const int64_t cell = message / 2, target = cell - cell % network_.ranks + dst;
    double end = Send(src, dst, start);
    if (IsExchange(message)) end = std::max(end, Send(dst, src, start));
    At(starts_, message) = start;
    At(ends_, message) = end;
    if (IsExchange(message)) {
      HasTotal(cell, end);
      HasTotal(target, end);
    } else if (message % 2 != 0) {
      HasTotal(cell, end);
    } else {
      At(ready_, target) = std::max(At(ready_, target), end);
      if (--At(waits_, target) == 0) IsSummed(target);
    }
  }

  const TreeNetwork& network_;
  const int64_t cells_;
  const Solution* solution_ = nullptr;
  std::vector<double> starts_, ends_, port_free_, link_free_, ready_;
  Numbers waits_;         // by cell, for how many sums of others
  Numbers leaves_;        // cells that wait for none
  Numbers first_, next_;  // by cell, the list of those that copy from it
  std::vector<size_t> place_;
  std::vector<Pending> pending_;
  double latest_ = 0.0, sum_ = 0.0;
};

// Changes one thing at random.
class Changes {
 public:
  Changes(int64_t ranks, int64_t chunks, uint64_t seed) : ranks_(ranks), chunks_(chunks), random_(seed) {}

  // Whether something has changed.
  bool Try(Solution& solution) {
    const int64_t chunk = Below(chunks_);
    int64_t* up = &solution.up[static_cast<size_t>(chunk * ranks_)];
    int64_t* down = &solution.down[static_cast<size_t>(chunk * ranks_)];
    int64_t& partner = solution.partner[static_cast<size_t>(chunk)];
    switch (Below(10)) {
      case 0:
      case 1:
        return ChangeParent(down, partner);
      case 2:
        return ChangeParent(up, partner);
      case 3:
      case 4:
        return SwapRanks(up, down, partner);
      case 5:
        return Below(2) == 0 ? ChangeExchange(up, down, partner) : ChangeRoot(up, down, partner);
      default:
        return ChangeOrder(solution.order);
    }
  }

  // In [0, 1).
  double Share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

 private:
  int64_t Below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }

  bool ChangeOrder(Numbers& order) {
    const auto from = order.begin() + Below(static_cast<int64_t>(order.size()));
    const auto to = order.begin() + Below(static_cast<int64_t>(order.size()));
    from < to ? std::rotate(from, from + 1, to + 1) : std::rotate(to, from, from + 1);
    return from != to;
  }

  bool ChangeParent(int64_t* parents, int64_t partner) {
    const int64_t rank = Below(ranks_), parent = Below(ranks_);
    if (parents[rank] < 0 || rank == partner || IsBelow(parents, parent, rank)) return false;
    parents[rank] = parent;
    return true;
  }

  bool SwapRanks(int64_t* up, int64_t* down, int64_t& partner) {
    const int64_t one = Below(ranks_), other = Below(ranks_);
    const auto swapped = [&](int64_t rank) { return rank == one ? other : rank == other ? one : rank; };
    for (int64_t* parents : {up, down}) {
      std::transform(parents, parents + ranks_, parents, swapped);
      std::swap(parents[one], parents[other]);
    }
    partner = swapped(partner);
    return one != other;
  }

  bool ChangeExchange(const int64_t* up, int64_t* down, int64_t& partner) {
    const int64_t rank = Below(ranks_);
    if (partner >= 0) {
      partner = -1;
    } else if (up[rank] >= 0 && up[up[rank]] < 0) {
      partner = rank;
      down[rank] = up[rank];
    } else {
      return false;
    }
    return true;
  }

  // A child of the root takes its place.
  bool ChangeRoot(int64_t* up, int64_t* down, int64_t& partner) {
    const int64_t rank = Below(ranks_);
    if (up[rank] < 0 || up[up[rank]] >= 0) return false;
    up[std::exchange(up[rank], -1)] = rank;
    for (int64_t from = -1, at = rank; at >= 0;) {
      const int64_t next = std::exchange(down[at], from);
      from = std::exchange(at, next);
    }
    partner = -1;
    return true;
  }

  const int64_t ranks_, chunks_;
  std::mt19937_64 random_;
};

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

bool AreTrees(const TreeNetwork& network, const Solution& solution) {
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
  Numbers messages = solution.order;
  std::sort(messages.begin(), messages.end());
  for (size_t at = 0; at < messages.size(); ++at) {
    if (messages[at] != static_cast<int64_t>(at)) return false;
  }
  return true;
}

}  // namespace

Status ImproveTrees(const TreeNetwork& network, int64_t tries, uint64_t seed, const ChunkTrees& trees,
                    const TreeTimes& times) {
  if (!IsNetwork(network)) return InvalidArgument("a network has two ranks, a chunk, its links, and finite times");
  const int64_t cells = network.ranks * network.chunks;
  Solution current{{trees.up, trees.up + cells},
                   {trees.down, trees.down + cells},
                   {trees.partner, trees.partner + network.chunks},
                   {trees.order, trees.order + 2 * cells}};
  if (!AreTrees(network, current)) {
    return InvalidArgument("up and down must be trees of every chunk with one root, and order one of all messages");
  }
  Timetable timetable(network);
  Changes changes(network.ranks, network.chunks, seed);
  double cost = timetable.Cost(current);
  Solution best = current, changed = current;
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
