#include "cc/gpu/nccl/simulation/simulation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "cc/kernels/reduce.h"

namespace jaxcomm {
namespace {

struct Message {
  uint32_t peer;
  bool send;
  std::byte* at;
  size_t bytes;
};

Status Internal(std::string message) { return Status(Code::kInternal, std::move(message)); }

}  // namespace

class Simulation::Rank : public Channel {
 public:
  struct Step {
    std::vector<Message> group;
    std::function<void()> reduce;  // instead of a group
  };

  Status GroupStart() override {
    if (grouped_) return Internal("a group is started within a group");
    grouped_ = true;
    steps.emplace_back();
    return Status();
  }
  Status Send(uint32_t peer, const std::byte* from, size_t bytes) override {
    return Add({peer, true, const_cast<std::byte*>(from), bytes});
  }
  Status Receive(uint32_t peer, std::byte* to, size_t bytes) override { return Add({peer, false, to, bytes}); }
  Status GroupEnd() override {
    if (!grouped_) return Internal("a group is ended that was not started");
    grouped_ = false;
    return Status();
  }
  Status Reduce(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
                size_t bytes) override {
    const ReduceFn reduce = plain::Find(dtype, reduction);
    if (reduce == nullptr) return Internal("no such reduction");
    if (std::count(sources.begin(), sources.end(), to) > 1) return Internal("a sum counts its own chunk twice");
    steps.push_back({{}, [=] { reduce(sources.data(), sources.size(), &to, 1, 1, bytes); }});
    return Status();
  }

  // The first message of the running group from or to a peer; nullptr: none.
  Message* Find(uint32_t peer, bool send) {
    if (!running) return nullptr;
    for (Message& message : steps.front().group) {
      if (message.peer == peer && message.send == send && message.at != nullptr) return &message;
    }
    return nullptr;
  }

  std::deque<Step> steps;
  bool running = false;  // the group at the front has begun

 private:
  Status Add(Message message) {
    if (!grouped_) return Internal("a message outside of a group");
    steps.back().group.push_back(message);
    return Status();
  }

  bool grouped_ = false;
};

Simulation::Simulation(uint32_t ranks, uint32_t seed) : random_(seed) {
  for (uint32_t rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Rank>());
}

Simulation::~Simulation() = default;

Channel& Simulation::channel(uint32_t rank) { return *ranks_[rank]; }

Status Simulation::Play() {
  std::vector<uint32_t> order(ranks_.size());
  std::iota(order.begin(), order.end(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    std::shuffle(order.begin(), order.end(), random_);
    for (const uint32_t rank : order) {
      if (random_() % 4 == 0) {
        moved = true;  // this one is slow
        continue;
      }
      if (Advance(rank)) moved = true;
      for (const uint32_t peer : order) {
        if (Status status = Match(rank, peer, &moved); !status.ok()) return status;
      }
    }
    const bool done = std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->steps.empty(); });
    if (done) return Status();
    if (moved) continue;
    // Nobody was slow by chance, and nothing moved.
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank]->running) continue;
    for (const Message& message : ranks_[rank]->steps.front().group) {
      if (message.at == nullptr) continue;
      return Internal("deadlock: rank " + std::to_string(rank) + " waits to " +
                      (message.send ? "send to" : "receive from") + " rank " + std::to_string(message.peer));
    }
  }
  return Internal("deadlock");
}

// Begins or ends what is at the front of a rank's queue.
bool Simulation::Advance(uint32_t index) {
  Rank& rank = *ranks_[index];
  if (rank.steps.empty()) return false;
  Rank::Step& step = rank.steps.front();
  if (step.reduce) {
    step.reduce();
    rank.steps.pop_front();
    return true;
  }
  if (!rank.running) {
    rank.running = true;
    for (const Message& message : step.group) {
      if (!message.send) std::memset(message.at, 0xA5, message.bytes);
    }
    return true;
  }
  const auto moved = [](const Message& message) { return message.at == nullptr; };
  if (!std::all_of(step.group.begin(), step.group.end(), moved)) return false;
  rank.running = false;
  rank.steps.pop_front();
  return true;
}

// Moves the next message from one rank to another, if both have come to it.
Status Simulation::Match(uint32_t src, uint32_t dst, bool* moved) {
  Message* const send = ranks_[src]->Find(dst, true);
  Message* const receive = ranks_[dst]->Find(src, false);
  if (send == nullptr || receive == nullptr) return Status();
  if (send->bytes != receive->bytes) {
    return Internal("rank " + std::to_string(src) + " sends " + std::to_string(send->bytes) + " bytes to rank " +
                    std::to_string(dst) + ", which receives " + std::to_string(receive->bytes));
  }
  std::memcpy(receive->at, send->at, send->bytes);
  send->at = receive->at = nullptr;
  *moved = true;
  return Status();
}

}  // namespace jaxcomm
