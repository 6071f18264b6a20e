// A model of a GPU's memory, in which a load may return an old value. Finds every unordered access.
//
//   MemoryModel model(threads, flags, cells, Weakness::kNone);
//   model.Store(0, flag, 1);              // with release
//   model.Load(1, flag);                  // with acquire; returns 1, or still 0
//   model.Write(0, cell);  model.Read(1, cell);   // model.race() names both threads unless a flag orders the accesses
//
// Each thread has two vector clocks. `before_` (happens-before) grows only at acquire loads of release stores, and
// decides which accesses race. `sees_` (the stores that the thread must see) also grows at sequentially consistent
// fences. A load returns the newest store that its thread must see, or any newer store. Each flag has one writer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace jaxcomm::fused {

// Deliberate mistakes in the protocol's memory orders. Tests check that the emulator finds each mistake.
enum class Weakness { kNone, kRelaxedLoads, kRelaxedStores, kNoFences };

class MemoryModel {
 public:
  static constexpr uint32_t kMaxThreads = 32;

  struct Loaded {
    uint64_t value;
    bool newest;
  };

  MemoryModel(uint32_t threads, uint32_t flags, uint32_t cells, Weakness weakness)
      : threads_(threads), weakness_(weakness), flags_(flags), cells_(cells) {}

  void Reset(uint64_t seed) {
    random_.seed(seed);
    for (Flag& flag : flags_) flag = Flag{};
    for (Cell& cell : cells_) cell = Cell{};
    for (uint32_t thread = 0; thread < threads_; ++thread) {
      before_[thread] = {};
      sees_[thread] = {};
      before_[thread][thread] = sees_[thread][thread] = 1;
    }
    fences_ = {};
    race_.reset();
  }

  void Store(uint32_t thread, uint32_t flag, uint64_t value) {
    const bool release = weakness_ != Weakness::kRelaxedStores;
    flags_[flag].stores.push_back({value, thread, before_[thread][thread], release, before_[thread], sees_[thread]});
    Tick(thread);
  }

  Loaded Load(uint32_t thread, uint32_t index) {
    Flag& flag = flags_[index];
    if (flag.stores.empty()) return {0, true};
    // Stores are counted from 1. Number 0 stands for the initial value, zero.
    size_t oldest = flag.seen[thread];
    while (oldest < flag.stores.size() && flag.stores[oldest].at <= sees_[thread][flag.stores[oldest].thread]) ++oldest;
    const size_t newest = flag.stores.size();
    const size_t choice = oldest == newest || Draw(2) == 0 ? newest : oldest + Draw(newest - oldest);
    flag.seen[thread] = static_cast<uint8_t>(choice);
    if (choice == 0) return {0, false};
    const Stored& store = flag.stores[choice - 1];
    if (store.release && weakness_ != Weakness::kRelaxedLoads) {
      Join(before_[thread], store.before);
      Join(sees_[thread], store.sees);
    }
    return {store.value, choice == newest};
  }

  void Fence(uint32_t thread) {
    if (weakness_ == Weakness::kNoFences) return;
    Join(sees_[thread], fences_);
    fences_ = sees_[thread];
    Tick(thread);
  }

  void Read(uint32_t thread, uint32_t index) {
    Cell& cell = cells_[index];
    if (cell.written > before_[thread][cell.writer]) Race(thread, "reads", index, cell.writer, "wrote");
    cell.read[thread] = before_[thread][thread];
  }

  void Write(uint32_t thread, uint32_t index) {
    Cell& cell = cells_[index];
    if (cell.written > before_[thread][cell.writer]) Race(thread, "writes", index, cell.writer, "wrote");
    for (uint32_t other = 0; other < threads_; ++other) {
      if (cell.read[other] > before_[thread][other]) Race(thread, "writes", index, other, "read");
    }
    cell.writer = thread;
    cell.written = before_[thread][thread];
    cell.read = {};
  }

  uint64_t Draw(uint64_t limit) { return random_() % limit; }
  const std::optional<std::string>& race() const { return race_; }

 private:
  using Clock = std::array<uint32_t, kMaxThreads>;

  struct Stored {
    uint64_t value;
    uint32_t thread, at;
    bool release;
    Clock before, sees;
  };
  struct Flag {
    std::vector<Stored> stores;
    std::array<uint8_t, kMaxThreads> seen = {};
  };
  struct Cell {
    uint32_t writer = 0, written = 0;
    Clock read = {};
  };

  void Join(Clock& into, const Clock& other) const {
    for (uint32_t thread = 0; thread < threads_; ++thread) into[thread] = std::max(into[thread], other[thread]);
  }

  void Tick(uint32_t thread) {
    const uint32_t now = std::max(before_[thread][thread], sees_[thread][thread]) + 1;
    before_[thread][thread] = sees_[thread][thread] = now;
  }

  void Race(uint32_t thread, const char* does, uint32_t cell, uint32_t other, const char* did) {
    if (race_) return;
    race_ = "thread " + std::to_string(thread) + " " + does + " cell " + std::to_string(cell) + ", which thread " +
            std::to_string(other) + " " + did + " and nothing orders the two";
  }

  const uint32_t threads_;
  const Weakness weakness_;
  std::vector<Flag> flags_;
  std::vector<Cell> cells_;
  std::array<Clock, kMaxThreads> before_ = {}, sees_ = {};
  Clock fences_ = {};
  std::mt19937_64 random_;
  std::optional<std::string> race_;
};

}  // namespace jaxcomm::fused
