#include "cc/gpu/executor/emulation/emulator.h"

#include <algorithm>

namespace jaxcomm::fused {
namespace {

constexpr uint64_t kTimeout = 1000;
constexpr uint64_t kEpochs = 3, kMissingEpoch = 2;
constexpr uint64_t kSpoiled = 0xdeadbeef;  // the value of spoiled data; practically never equals a sum

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

class Emulator::BlockOps {
 public:
  BlockOps(Emulator& all, uint32_t rank, uint32_t block_index, uint64_t epoch)
      : all_(all), rank_(rank), block_index_(block_index), epoch_(epoch), known_(uint64_t{1} << rank) {}

  uint64_t Now() const { return all_.time_; }

  uint64_t Acquire(uint32_t rank, uint32_t flag) {
    all_.Step();
    const uint32_t index = all_.Flag(rank, flag, block_index_);
    const MemoryModel::Loaded loaded = all_.model_.Load(thread(), index);
    Thread& me = all_.threads_[thread()];
    me.polled.push_back(index);
    me.overlooked = me.overlooked || !loaded.newest;
    return loaded.value;
  }

  void Post(uint32_t flag, uint64_t epoch) {
    all_.Step();
    const uint32_t index = all_.Flag(rank_, flag, block_index_);
    all_.model_.Store(thread(), index, epoch);
    all_.Wake(index);
  }

  void Fence() {
    all_.Step();
    all_.model_.Fence(thread());
  }

  void Publish() { Store(all_.Cell(rank_, all_.view_.num_chunks, block_index_), epoch_); }

  void Lookup(uint32_t peer) {
    if (Load(all_.Cell(peer, all_.view_.num_chunks, block_index_)) != epoch_) {
      all_.Fail("rank " + std::to_string(rank_) + " finds another call's address of rank " + std::to_string(peer));
    }
    known_ |= uint64_t{1} << peer;
  }

  void Pause() { all_.Pause(thread()); }

  template <typename Condition>
  BlockFailure All(const Wait* waits, uint32_t count, Condition condition) {
    for (uint32_t i = 0; i < count; ++i) {
      all_.threads_[thread()].polled.clear();
      all_.threads_[thread()].overlooked = false;
      const BlockFailure failure = condition(waits[i]);
      if (failure.reason != Reason::kNone) return failure;
    }
    return {};
  }

  void Execute(const TableOp& op) {
    all_.Step();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < op.reads.size; ++i) {
      sum += Load(Chunk(all_.view_.ranks[op.reads.begin + i], op.chunk));
    }
    all_.Step();
    for (uint32_t i = 0; i < op.writes.size; ++i) {
      Store(Chunk(all_.view_.ranks[op.writes.begin + i], op.chunk), sum);
    }
  }

  void Spoil() {
    all_.Step();
    for (uint32_t chunk = 0; chunk < all_.view_.num_chunks; ++chunk)
      Store(all_.Cell(rank_, chunk, block_index_), kSpoiled);
  }

  uint64_t Load(uint32_t cell) {
    all_.model_.Read(thread(), cell);
    if (all_.model_.race()) all_.Fail(*all_.model_.race());
    return all_.values_[cell];
  }

  void Store(uint32_t cell, uint64_t value) {
    all_.model_.Write(thread(), cell);
    if (all_.model_.race()) all_.Fail(*all_.model_.race());
    all_.values_[cell] = value;
  }

 private:
  uint32_t thread() const { return rank_ * all_.num_blocks_ + block_index_; }

  uint32_t Chunk(uint32_t peer, uint32_t chunk) {
    if ((known_ >> peer & 1) == 0) {
      all_.Fail("rank " + std::to_string(rank_) + " does not know where the buffer of rank " + std::to_string(peer) +
                " is");
    }
    return all_.Cell(peer, chunk, block_index_);
  }

  Emulator& all_;
  const uint32_t rank_, block_index_;
  const uint64_t epoch_;
  uint64_t known_;  // bit r: this block has looked up the address of rank r
};

Emulator::Emulator(const Table& table, uint32_t num_blocks, Weakness weakness)
    : view_(table.view()),
      num_blocks_(num_blocks),
      num_threads_(view_.num_ranks * num_blocks),
      model_(num_threads_, view_.num_ranks * view_.num_flags * num_blocks,
             view_.num_ranks * (view_.num_chunks + 1) * num_blocks, weakness),
      fibers_(num_threads_),
      values_(view_.num_ranks * (view_.num_chunks + 1) * num_blocks) {}

Verdict Emulator::Run(uint64_t seed, Lateness lateness) {
  seed_ = seed;
  lateness_ = lateness;
  time_ = 0;
  verdict_ = {};
  model_.Reset(seed);
  threads_.assign(num_threads_, Thread{});
  runnable_.clear();
  for (uint32_t thread = 0; thread < num_threads_; ++thread) runnable_.push_back(thread);
  fibers_.Run([this](uint32_t thread) { RunThread(thread); });
  return verdict_;
}

void Emulator::RunThread(uint32_t thread) {
  const uint32_t rank = thread / num_blocks_, block_index = thread % num_blocks_;
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    if (rank == Missing(epoch)) {
      threads_[thread].state = Thread::kHeld;
      Step();
    }
    BlockOps ops(*this, rank, block_index, epoch);
    for (uint32_t chunk = 0; chunk < view_.num_chunks; ++chunk) {
      const uint32_t cell = Cell(rank, chunk, block_index);
      ops.Store(cell, Input(cell, epoch));
    }
    const BlockFailure failure = RunBlock(ops, view_, rank, epoch, kTimeout);
    Check(rank, block_index, epoch, failure);
    for (uint32_t chunk = 0; chunk < view_.num_chunks; ++chunk) {
      if (failure.reason != Reason::kNone) {
        if (ops.Load(Cell(rank, chunk, block_index)) != kSpoiled)
          Fail("rank " + std::to_string(rank) + " failed and did not spoil its data");
        continue;
      }
      uint64_t sum = 0;
      for (uint32_t other = 0; other < view_.num_ranks; ++other) sum += Input(Cell(other, chunk, block_index), epoch);
      if (ops.Load(Cell(rank, chunk, block_index)) != sum) {
        Fail("rank " + std::to_string(rank) + " holds a wrong sum in chunk " + std::to_string(chunk));
      }
    }
  }
  threads_[thread].state = Thread::kDone;
  Step();
}

void Emulator::Check(uint32_t rank, uint32_t block_index, uint64_t epoch, const BlockFailure& failure) {
  if (failure.reason == Reason::kNone) return;
  ++verdict_.failures;
  const std::string who = "rank " + std::to_string(rank) + ", block " + std::to_string(block_index) + ", call " +
                          std::to_string(epoch) + ": ";
  if (lateness_ != Lateness::kMissing || epoch != kMissingEpoch) Fail(who + "failed without a reason");
  if (failure.reason == Reason::kStillThere) Fail(who + "could not leave");
  if (failure.reason == Reason::kNotArrived && failure.peer != Missing(epoch)) {
    Fail(who + "blames rank " + std::to_string(failure.peer));
  }
}

// Switches to a random thread that can run.
void Emulator::Step() {
  ++verdict_.steps;
  const uint32_t me = fibers_.current();
  if (threads_[me].state != Thread::kRuns) runnable_.erase(std::find(runnable_.begin(), runnable_.end(), me));
  if (runnable_.empty() && !Unblock()) fibers_.Stop();
  fibers_.SwitchTo(runnable_[model_.Draw(runnable_.size())]);
}

// Parks the thread until another thread stores to a flag that the thread polled, or until the clock advances. Does not
// park the thread if a polled flag already has a store that the thread has not seen.
void Emulator::Pause(uint32_t thread) {
  Thread& me = threads_[thread];
  if (!me.overlooked) me.state = Thread::kParked;
  Step();
  me.overlooked = false;
  me.polled.clear();
}

void Emulator::Wake(uint32_t flag) {
  for (uint32_t thread = 0; thread < num_threads_; ++thread) {
    Thread& it = threads_[thread];
    if (std::find(it.polled.begin(), it.polled.end(), flag) == it.polled.end()) continue;
    it.overlooked = true;
    if (it.state != Thread::kParked) continue;
    it.state = Thread::kRuns;
    runnable_.push_back(thread);
  }
}

// Called when no thread can run. Lets the late rank arrive. With kMissing, first moves time past the other ranks'
// deadline. Returns false if still no thread can run.
bool Emulator::Unblock() {
  const bool held =
      std::any_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == Thread::kHeld; });
  if (held && lateness_ == Lateness::kMissing) time_ += kTimeout + 1;
  for (uint32_t thread = 0; held && thread < num_threads_; ++thread) {
    Thread& it = threads_[thread];
    if (it.state == Thread::kDone || it.state == Thread::kRuns) continue;
    if (it.state == Thread::kParked && lateness_ != Lateness::kMissing) continue;
    it.state = Thread::kRuns;
    runnable_.push_back(thread);
  }
  if (!runnable_.empty()) return true;
  for (uint32_t thread = 0; thread < num_threads_; ++thread) {
    if (threads_[thread].state != Thread::kParked || !verdict_.mistake.empty()) continue;
    verdict_.mistake = "deadlock: thread " + std::to_string(thread) + " waits for flag " +
                       std::to_string(threads_[thread].polled.front());
  }
  return false;
}

void Emulator::Fail(const std::string& mistake) {
  verdict_.mistake = mistake;
  fibers_.Stop();
}

// Returns the late rank of a call, or UINT32_MAX if no rank is late.
uint32_t Emulator::Missing(uint64_t epoch) const {
  if (lateness_ == Lateness::kNone || (lateness_ == Lateness::kMissing && epoch != kMissingEpoch)) return UINT32_MAX;
  return static_cast<uint32_t>(Mix(seed_ + epoch) % view_.num_ranks);
}

// Returns the random input of a cell. Sums are modulo 2^64, so a wrong sum practically never equals the right sum.
uint64_t Emulator::Input(uint32_t cell, uint64_t epoch) const {
  return Mix(seed_ * 31 + epoch * 0x9e3779b97f4a7c15 + cell);
}

}  // namespace jaxcomm::fused
