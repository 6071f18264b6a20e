// Computes the times of the messages along trees. Each message starts as soon as its data and ports are ready.
//
//   TreeTimetable timetable(network);
//   double cost = timetable.Cost(solution);
//   timetable.starts()[message] ...
//
// Messages are placed (get their times) one by one, as in the parallel scheme of list scheduling. A cell is one chunk
// of one rank; the number of a cell is chunk * ranks + rank. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/search/tree_search.h"

namespace jaxcomm {

// The arrays of ChunkTrees, as vectors.
struct TreeSolution {
  std::vector<int64_t> up, down, partner, order;
};

class TreeTimetable {
 public:
  explicit TreeTimetable(const TreeNetwork& network)
      : network_(network),
        cells_(network.ranks * network.chunks),
        starts_(2 * static_cast<size_t>(cells_)),
        ends_(starts_.size()),
        place_(starts_.size()) {}

  // Places all messages and returns the cost. The cost is the latest time at which a rank obtains the total of a chunk,
  // plus the mean of these times over all ranks and chunks. Without the mean, most changes of the trees would not
  // change the cost.
  double Cost(const TreeSolution& solution) {
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
  using Pending = std::tuple<double, size_t, int64_t>;  // earliest start, place in the order, message

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

  // Runs when the cell's rank has added the sums of all its children.
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

  // Returns the source and the destination of a message.
  std::pair<int64_t, int64_t> Ends(int64_t message) const {
    const int64_t cell = message / 2, rank = cell % network_.ranks;
    if (message % 2 != 0) return {At(solution_->down, cell), rank};
    return {rank, At(solution_->up, cell)};
  }

  // Sending, Receiving: the time from which a message's sending or receiving port is free.
  double& Sending(int64_t src, int64_t dst) { return At(port_free_, 4 * src + 2 * Remote(src, dst)); }
  double& Receiving(int64_t src, int64_t dst) { return At(port_free_, 4 * dst + 2 * Remote(src, dst) + 1); }
  int64_t Remote(int64_t src, int64_t dst) const { return network_.remote[src * network_.ranks + dst] != 0; }

  double PortsFree(int64_t src, int64_t dst) { return std::max(Sending(src, dst), Receiving(src, dst)); }

  // Returns the message that can start first. If several messages can start first, returns the first one in the order.
  // If a port of a message has become busy since the message entered the heap, the message's time in the heap is too
  // early. The message is then put back with the right time.
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

  // Sends a message at `start` and returns the time of its arrival.
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
  const TreeSolution* solution_ = nullptr;
  std::vector<double> starts_, ends_, port_free_, link_free_, ready_;
  std::vector<int64_t> waits_;         // by cell, the number of sums that the cell waits for
  std::vector<int64_t> leaves_;        // cells that wait for no sum
  std::vector<int64_t> first_, next_;  // by cell, the linked list of the cells that copy from the cell
  std::vector<size_t> place_;
  std::vector<Pending> pending_;
  double latest_ = 0.0, sum_ = 0.0;
};

}  // namespace jaxcomm
