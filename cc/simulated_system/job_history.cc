#include "cc/simulated_system/job_history.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/own_descriptors.h"
#include "cc/executor/device_communicator.h"
#include "cc/ffi/job.h"
#include "cc/simulated_system/network.h"
#include "cc/simulated_system/processes.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {
namespace {

constexpr double kDeadline = 5;                    // seconds
constexpr Nanoseconds kSlack = 3 * kSecond;        // after the deadline
constexpr Nanoseconds kConnecting = 20 * kSecond;  // limit for connecting a generation
constexpr uint64_t kCalls = 100;                   // faults strike at a random one of so many calls
constexpr Nanoseconds kRecovery = 120 * kSecond;   // limit for the recovery from the last fault
constexpr uint32_t kLastBlocks = 2;                // blocks without a failed call that end a history

using Words = std::vector<uint32_t>;

uint32_t Word(uint32_t rank, uint32_t call, size_t index) {
  return (rank + 1) * 1000003u + call * 7919u + static_cast<uint32_t>(index);
}

Words Content(uint32_t rank, uint32_t call, size_t words) {
  Words content(words);
  for (size_t i = 0; i < words; ++i) content[i] = Word(rank, call, i);
  return content;
}

// The properties of a job.
struct JobPlan {
  uint32_t processes, rails;
  std::vector<uint32_t> hosts;  // by process
  RailKind kind;
  int faults;
};

// One start of a process.
struct Member {
  uint32_t number;
  uint64_t incarnation;
  Process* process;
  bool is_known_dead = false, is_replaced = false, has_entered = false, has_failed = false, is_done = false;
};

// The result of a barrier: the members, and a number that changes when the members must connect anew.
struct Barrier {
  uint64_t number = 0, generation = 0;
  std::map<uint32_t, uint64_t> members;  // incarnations by process
  bool is_last = false;
};

class JobHistory {
 public:
  explicit JobHistory(uint32_t seed) : scheduler_(seed), network_(scheduler_) {}

  void Run() {
    scheduler_.Run([this] {
      CloseInChildren(-1);  // makes the registry that all processes share
      Plan();
      for (uint32_t number = 0; number < plan_.processes; ++number) Begin(number);
      while (!is_over_) {
        if (scheduler_.now() > last_fault_ + kRecovery)
          scheduler_.Fail("the job has not recovered from the last fault");
        scheduler_.SleepUntil(scheduler_.now() + kSecond / 10);
      }
    });
  }

  uint64_t hash() const { return scheduler_.hash(); }
  uint64_t switches() const { return scheduler_.switches(); }
  uint64_t calls() const { return calls_; }

 private:
  friend class MemberProgram;

  uint32_t Random(uint64_t limit) { return static_cast<uint32_t>(scheduler_.Random(limit)); }
  Nanoseconds RandomTime(Nanoseconds limit) {
    return static_cast<Nanoseconds>(scheduler_.Random(static_cast<uint64_t>(limit)));
  }

  void Plan() {
    plan_.processes = 2 + Random(4);
    const uint32_t hosts = 1 + Random(std::min(plan_.processes, 3u));
    for (uint32_t i = 0; i < plan_.processes; ++i) plan_.hosts.push_back(i < hosts ? i : Random(hosts));
    plan_.rails = 1 + Random(3);
    plan_.kind = Random(2) == 0 ? RailKind::kTcp : RailKind::kUdp;
    plan_.faults = Random(4) == 0 ? 0 : 1 + static_cast<int>(Random(5));
    for (uint32_t from = 0; from < hosts; ++from) {
      for (uint32_t to = 0; to < hosts; ++to) {
        for (uint32_t rail = 0; rail < plan_.rails; ++rail) {
          Link& link = network_.Between(from, to, rail);
          link.delay = kMicrosecond * (10 + Random(1000));
          link.jitter = Random(2) == 0 ? 0 : kMicrosecond * Random(2000);
          link.bytes_per_second = 10000000 * (1 + Random(100));
          link.loss = Random(2) == 0 ? 0 : 0.03 * Random(3);
          link.repeats = Random(2) == 0 ? 0 : 0.02;
        }
      }
    }
    scheduler_.Trace(std::to_string(plan_.processes) + " processes on " + std::to_string(hosts) + " hosts, " +
                     std::to_string(plan_.rails) + (plan_.kind == RailKind::kTcp ? " TCP" : " UDP") + " rails, " +
                     std::to_string(plan_.faults) + " faults");
    for (int fault = 0; fault < plan_.faults; ++fault) {
      strikes_.insert(1 + Random(kCalls));
    }
  }

  // Counts a call that a member begins. Faults strike a moment later, so that many strike during calls.
  void BeginCall() {
    ++calls_;
    for (; !strikes_.empty() && *strikes_.begin() <= calls_; strikes_.erase(strikes_.begin())) {
      Extend(scheduler_.now() + 2 * kMillisecond);
      scheduler_.At(scheduler_.now() + RandomTime(Random(2) == 0 ? kMillisecond / 10 : 2 * kMillisecond),
                    [this] { Strike(); });
    }
  }

  void Strike() {
    const uint32_t number = Random(plan_.processes);
    const std::shared_ptr<Member> member = starts_.at(number);
    switch (Random(7)) {
      case 0:
      case 1:
        return Kill(member);
      case 2:
        return StopFor(member, RandomTime(Random(2) == 0 ? kSecond : 12 * kSecond));
      case 3:
        return Replace(member);
      case 4:
        return Degrade();
      default:
        return CutHost(number);
    }
  }

  // Faults last until then.
  void Extend(Nanoseconds until) { last_fault_ = std::max(last_fault_, until); }

  void StopFor(const std::shared_ptr<Member>& member, Nanoseconds time) {
    if (member->process->state != Process::State::kRuns) return;
    scheduler_.Trace("process " + std::to_string(member->number) + " stops for " + std::to_string(time / kMillisecond) +
                     " ms");
    suspects_.insert(member->number);
    scheduler_.Stop(*member->process);
    Extend(scheduler_.now() + time);
    scheduler_.At(scheduler_.now() + time, [this, member] {
      if (member->process->state == Process::State::kStopped) scheduler_.Continue(*member->process);
    });
  }

  // Stops a process for so long that it is started again elsewhere. Then the first start goes on.
  void Replace(const std::shared_ptr<Member>& member) {
    if (member->process->state != Process::State::kRuns || member->is_done) return;
    StopFor(member, kSecond + RandomTime(10 * kSecond));
    scheduler_.Trace("process " + std::to_string(member->number) + " is replaced");
    member->is_replaced = true;
    const Nanoseconds noticed = scheduler_.now() + RandomTime(kSecond);
    Extend(noticed + kSecond);
    scheduler_.At(noticed, [this, member] {
      member->is_known_dead = true;
      CompleteBarrier();
      is_due_[member->number] = true;
      scheduler_.Wake(KeyOf(&is_due_));
    });
  }

  // Makes a link slow, or makes it lose many or all long packets, for a while. The wall clocks jump, too.
  void Degrade() {
    const uint32_t from = plan_.hosts[Random(plan_.processes)], to = plan_.hosts[Random(plan_.processes)];
    const uint32_t rail = Random(plan_.rails);
    Link& link = network_.Between(from, to, rail);
    const Nanoseconds time = RandomTime(5 * kSecond);
    scheduler_.Trace("rail " + std::to_string(rail) + " from host " + std::to_string(from) + " to " +
                     std::to_string(to) + " degrades for " + std::to_string(time / kMillisecond) + " ms");
    scheduler_.Jump(RandomTime(20 * kSecond) - 10 * kSecond);
    if (from == to) return;
    for (uint32_t i = 0; i < plan_.processes; ++i) {
      if (plan_.hosts[i] == from || plan_.hosts[i] == to) suspects_.insert(i);
    }
    Extend(scheduler_.now() + time);
    const Link before = link;
    switch (Random(3)) {
      case 0:
        link.bytes_per_second = 100000;
        break;
      case 1:
        link.loss = 0.5;
        break;
      default:
        link.mtu = 1000;
    }
    scheduler_.At(scheduler_.now() + time, [&link, before] {
      link.bytes_per_second = before.bytes_per_second;
      link.loss = before.loss;
      link.mtu = before.mtu;
    });
  }

  // Cuts the rails, or one rail, between two hosts, in one direction or both.
  void CutHost(uint32_t number) {
    const uint32_t other = plan_.hosts[Random(plan_.processes)], host = plan_.hosts[number];
    if (other == host) return;
    const uint32_t only = Random(2) == 0 ? Random(plan_.rails) : ~0u;
    const bool both = Random(3) != 0;
    const Nanoseconds time = RandomTime(Random(2) == 0 ? kSecond : 25 * kSecond);
    scheduler_.Trace("hosts " + std::to_string(host) + " and " + std::to_string(other) + " are cut for " +
                     std::to_string(time / kMillisecond) + " ms, rail " + std::to_string(static_cast<int>(only)) +
                     (both ? "" : ", one way"));
    for (uint32_t i = 0; i < plan_.processes; ++i) {
      if (plan_.hosts[i] == host || plan_.hosts[i] == other) suspects_.insert(i);
    }
    Extend(scheduler_.now() + time);
    for (uint32_t rail = 0; rail < plan_.rails; ++rail) {
      if (only != ~0u && only != rail) continue;
      for (Link* const link : {&network_.Between(host, other, rail), &network_.Between(other, host, rail)}) {
        network_.Cut(*link);
        scheduler_.At(scheduler_.now() + time, [this, link] { network_.Mend(*link); });
        if (!both) break;
      }
    }
  }

  void Kill(const std::shared_ptr<Member>& member) {
    if (member->process->is_dying || member->is_done || member->is_replaced) return;
    scheduler_.Trace("process " + std::to_string(member->number) + " is killed");
    suspects_.insert(member->number);
    scheduler_.Kill(*member->process);
    const Nanoseconds noticed = scheduler_.now() + RandomTime(kSecond),
                      again = scheduler_.now() + RandomTime(3 * kSecond);
    Extend(std::max(noticed, again));
    scheduler_.At(noticed, [this, member] {
      member->is_known_dead = true;
      CompleteBarrier();
    });
    scheduler_.At(again, [this, member] { is_due_[member->number] = true; });
    scheduler_.At(again, [this] { scheduler_.Wake(KeyOf(&is_due_)); });
  }

  void Begin(uint32_t number);

  // The coordination service.
  Barrier Enter(const std::shared_ptr<Member>& member, bool has_failed) {
    member->has_entered = true;
    member->has_failed = has_failed;
    const uint64_t number = barrier_.number;
    CompleteBarrier();
    while (barrier_.number == number && !member->is_known_dead) scheduler_.Block(KeyOf(&barrier_));
    return member->is_known_dead ? Barrier() : barrier_;
  }

  void CompleteBarrier() {
    std::map<uint32_t, uint64_t> members;
    bool has_failed = false;
    for (const auto& [number, member] : starts_) {
      if (member->is_known_dead) continue;
      if (!member->has_entered) return;
      members[number] = member->incarnation;
      has_failed |= member->has_failed;
    }
    if (members.empty()) return;
    if (members != barrier_.members || has_failed) ++barrier_.generation;
    blocks_ = has_failed || members.size() < plan_.processes || scheduler_.now() < last_fault_ ? 0 : blocks_ + 1;
    barrier_.is_last = blocks_ > kLastBlocks && strikes_.empty();
    barrier_.members = members;
    ++barrier_.number;
    for (const auto& [number, member] : starts_) member->has_entered = false;
    scheduler_.Wake(KeyOf(&barrier_));
  }

  // The key-value store. Entries belong to a generation.
  using Entry = std::tuple<uint64_t, uint32_t, uint32_t, std::string>;  // generation, from, to, name
  void Publish(const Entry& entry, std::pair<int64_t, int64_t> value) {
    entries_[entry] = value;
    scheduler_.Wake(KeyOf(&entries_));
  }
  // Returns an entry once.
  std::optional<std::pair<int64_t, int64_t>> Take(const Entry& entry) {
    const auto found = entries_.find(entry);
    if (found == entries_.end()) return std::nullopt;
    const auto value = found->second;
    entries_.erase(found);
    return value;
  }
  // Returns nullopt if the other process dies, or has failed to connect, or the time passes.
  std::optional<std::pair<int64_t, int64_t>> Lookup(const Entry& entry, const Member& other, Nanoseconds until) {
    while (entries_.count(entry) == 0) {
      const bool has_failed = entries_.count({std::get<0>(entry), other.number, 0, "failed"}) > 0;
      if (other.is_known_dead || has_failed || scheduler_.now() >= until) return std::nullopt;
      scheduler_.Block(KeyOf(&entries_), std::min(until, scheduler_.now() + kSecond / 10));
    }
    return entries_[entry];
  }

  // Returns whether a sum has the same bits as in the members that had it before.
  bool AreSame(uint64_t generation, int64_t launch, const std::vector<float>& sum) {
    const auto [found, is_first] = sums_.emplace(std::make_pair(generation, launch), sum);
    return is_first || std::memcmp(found->second.data(), sum.data(), sum.size() * sizeof(float)) == 0;
  }

  // Returns whether the error names a process that may be its cause. A rank that has arrived and then waits for a third
  // rank is named, too, because the others cannot know that it waits.
  bool NamesASuspect(const std::string& text) const {
    if (text.find("not sent all messages") != std::string::npos) return true;
    if (text.find("not accepted all messages") != std::string::npos) return true;
    for (const char* const word : {"rank", "process"}) {
      for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const size_t first = text.find_first_of("0123456789", at), end = text.find_first_not_of("0123456789,", first);
        if (first == std::string::npos) continue;
        std::string numbers = "," + text.substr(first, end == std::string::npos ? end : end - first) + ",";
        for (const uint32_t suspect : suspects_) {
          if (numbers.find("," + std::to_string(suspect) + ",") != std::string::npos) return true;
        }
      }
    }
    return false;
  }

  Scheduler scheduler_;
  Network network_;
  JobPlan plan_;
  std::map<uint32_t, std::shared_ptr<Member>> starts_;  // the latest start of each process
  std::map<uint32_t, bool> is_due_;                     // whether a killed process is to be started again
  std::set<uint32_t> suspects_;
  std::multiset<uint64_t> strikes_;  // numbers of calls at which faults will strike
  uint64_t incarnations_ = 0, calls_ = 0;
  Nanoseconds last_fault_ = 0;
  Barrier barrier_;
  uint32_t blocks_ = 0, done_ = 0;
  std::map<Entry, std::pair<int64_t, int64_t>> entries_;
  std::map<std::pair<uint64_t, int64_t>, std::vector<float>> sums_;
  bool is_over_ = false;
};

// The program that each process runs.
class MemberProgram {
 public:
  MemberProgram(JobHistory& history, std::shared_ptr<Member> member)
      : history_(history), scheduler_(history.scheduler_), self_(std::move(member)) {}

  void Run() {
    executor_.SetDeadline(kDeadline);
    scheduler_.Spawn(*self_->process, [this] { Repair(); });
    bool has_failed = false;
    for (;;) {
      const Barrier barrier = history_.Enter(self_, has_failed);
      const auto found = barrier.members.find(self_->number);
      if (found == barrier.members.end() || found->second != self_->incarnation) return EndReplaced();
      if (barrier.is_last) break;
      has_failed = false;
      if (barrier.generation != generation_) {
        generation_ = barrier.generation;
        has_failed = !Connect(barrier);
        scheduler_.Trace(has_failed ? "could not connect" : "has connected");
        if (has_failed) {
          history_.suspects_.insert(self_->number);
          history_.Publish({generation_, self_->number, 0, "failed"}, {});
        }
      }
      scheduler_.SleepUntil(scheduler_.now() +
                            history_.RandomTime(history_.strikes_.empty() ? 4 * kSecond : kMillisecond));
      const uint32_t calls = 1 + static_cast<uint32_t>(barrier.number * 7919 % 7);
      for (uint32_t call = 0; call < calls && !has_failed && communicator_; ++call) {
        has_failed = !Call(static_cast<uint32_t>(barrier.number) * 16 + call);
      }
    }
    End();
  }

 private:
  // The process has been started again elsewhere, so this start ends at once.
  void EndReplaced() {
    scheduler_.Trace("was replaced, and ends");
    scheduler_.Kill(*self_->process);
    scheduler_.Block({1, 1});
  }

  void End() {
    communicator_ = nullptr;
    group_ = nullptr;
    Leave();
    is_over_ = true;
    while (repairs_) scheduler_.SleepUntil(scheduler_.now() + kMillisecond);
  }

  bool Leave() {
    const std::lock_guard<std::mutex> lock(repair_mutex_);
    is_connected_ = false;
    job_.Close();
    const Status status = executor_.messages().Disconnect(Clock::now() + std::chrono::seconds(10));
    if (!status.ok())
      scheduler_.Fail("process " + std::to_string(self_->number) + " could not disconnect: " + status.message());
    job_.Reset();
    return true;
  }

  bool Connect(const Barrier& barrier) {
    const JobPlan& plan = history_.plan_;
    const Nanoseconds until = scheduler_.now() + kConnecting;
    communicator_ = nullptr;
    group_ = nullptr;
    if (sums_) sums_->Forget(executor_);
    sums_ = nullptr;
    Leave();
    const uint32_t own = self_->number;
    if (!Check(job_.Open(own, plan.processes, /*same_job=*/true))) return false;
    std::vector<std::string> names;
    for (uint32_t rail = 0; rail < plan.rails; ++rail) names.push_back("eth" + std::to_string(rail));
    std::vector<Member> others;
    for (const auto& [number, incarnation] : barrier.members) {
      if (number == own) continue;
      const Member& other = *history_.starts_.at(number);
      if (other.incarnation != incarnation) return false;  // started again since the barrier
      others.push_back(other);
    }
    const auto shm = job_.Shm();
    if (!Check(shm.status())) return false;
    for (const Member& other : others) {
      history_.Publish({generation_, own, other.number, "shm"},
                       {shm.value()->fd(), static_cast<int64_t>(shm.value()->nonce())});
    }
    if (!Check(job_.OpenRails(plan.kind, names))) return false;
    for (const Member& other : others) {
      if (plan.hosts[other.number] == plan.hosts[own] ? !AddShm(other, until) : !AddRails(other, until)) return false;
    }
    std::vector<uint32_t> hosts(plan.processes, Job::kAbsent);
    std::vector<std::string> host_names(plan.processes);
    for (const auto& [number, incarnation] : barrier.members) {
      hosts[number] = plan.hosts[number];
      host_names[number] = "host" + std::to_string(plan.hosts[number]);
    }
    if (!Check(job_.Start(hosts, host_names))) return false;
    executor_.messages().Connect(job_.transport(), job_.has_processor_each());
    for (const uint32_t absent : job_.absent()) {
      executor_.messages().OnPeerGone(
          absent, Status(Code::kInternal, "process " + std::to_string(absent) + " is not among the live processes"));
    }
    std::vector<MessageRank> devices;
    ranks_.clear();
    for (const auto& [number, incarnation] : barrier.members) {
      if (number == own) rank_ = static_cast<uint32_t>(devices.size());
      devices.push_back(job_.Rank(number, number));
      ranks_.push_back(number);
    }
    is_connected_ = true;
    if (devices.size() == 1) return true;
    group_ = std::make_shared<DeviceGroup>(DeviceGroup::NameOf(devices), devices, 0);
    const std::string size = std::to_string(devices.size());
    const auto choose = [size](Kind kind, const DeviceGroup&, int64_t bytes) -> DeviceCommunicator::Chosen {
      if (kind == Kind::kReduceScatter) return {"reduce_scatter/direct/" + size, "direct"};
      if (kind == Kind::kAllGather) return {"all_gather/direct/" + size, "direct"};
      return {(bytes <= 16 << 10 ? "all_reduce/flat/" : "all_reduce/direct/") + size, "direct"};
    };
    communicator_ = std::make_unique<DeviceCommunicator>(executor_, lists_, choose, group_, rank_);
    return Check(MakeSums(devices));
  }

  // Makes the call site of sums that select from several schedules. The generation determines the rule.
  Status MakeSums(const std::vector<MessageRank>& devices) {
    using Selector = ScheduleSelector;
    const auto ranks = static_cast<uint32_t>(devices.size());
    const Selector::Rule rules[] = {
        {Selector::kAnyRank, 0}, {Selector::kAnyRank, 0.001}, {0, 0.0005}, {ranks - 1, 0.0005}, Selector::kTrial};
    const Selector::Rule rule = rules[generation_ % 5];
    std::vector<std::shared_ptr<MessageSite>> sites;
    for (uint32_t schedule = 0; schedule < Selector::Count(rule, ranks); ++schedule) {
      const std::string kinds[] = {"direct", "ring", "flat"};
      const std::string list = "all_reduce/" + kinds[schedule % 3] + "/" + std::to_string(ranks);
      MessageGroup group{devices, list, {}};
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        group.lists.push_back(rank == rank_ ? lists_.Find(list, rank) : nullptr);
      }
      auto made = MessageSite::Make({"psum", "data", "plan", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 77, 0,
                                    {group}, self_->number);
      if (!made.ok()) return made.status();
      sites.push_back(made.value());
    }
    const std::vector<std::shared_ptr<MessageSite>> others(sites.begin() + 1, sites.end());
    sums_ = sites[0];
    sums_->SelectFrom(others, executor_.messages().SelectorOf(*sums_, others, rule, /*step=*/0));
    launches_ = 0;
    return sums_->SetLeaves({{DType::kF32, 4 * kSummed}}, executor_.stats());
  }

  // Makes a few sums, which are in flight at the same time. All members must get the same bits.
  Status Sum(uint32_t call, bool* is_right) {
    constexpr int kFlights = 3;
    std::vector<std::vector<float>> values(kFlights, std::vector<float>(kSummed));
    std::vector<std::shared_ptr<Transfer>> sums;
    for (int i = 0; i < kFlights; ++i) {
      std::vector<float>& operand = values[static_cast<size_t>(i)];
      for (size_t k = 0; k < kSummed; ++k) operand[k] = 0.1f * static_cast<float>(Word(rank_, call, k) % 1000);
      if (history_.Random(3) == 0) scheduler_.SleepUntil(scheduler_.now() + history_.RandomTime(3 * kMillisecond));
      auto* const bytes = reinterpret_cast<std::byte*>(operand.data());
      sums.push_back(std::make_shared<Transfer>());
      executor_.messages().Arrive(sums_, launches_++, rank_, {{bytes}, {bytes}},
                                  [sum = sums.back()](const Status& end) { sum->End(end); });
    }
    Status status;
    for (int i = 0; i < kFlights; ++i) {
      if (Status end = sums[static_cast<size_t>(i)]->Wait(executor_); !end.ok()) {
        if (status.ok()) status = end;
        continue;
      }
      const std::vector<float>& sum = values[static_cast<size_t>(i)];
      for (size_t k = 0; k < kSummed; ++k) {
        float expected = 0;
        for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
          expected += 0.1f * static_cast<float>(Word(rank, call, k) % 1000);
        *is_right = *is_right && std::abs(sum[k] - expected) < 0.01f;
      }
      *is_right = *is_right && history_.AreSame(generation_, launches_ - kFlights + i, sum);
    }
    return status;
  }

  bool AddShm(const Member& other, Nanoseconds until) {
    const auto found = history_.Lookup({generation_, other.number, self_->number, "shm"}, other, until);
    if (!found || other.process->state == Process::State::kKilled) return false;
    const int fd = open(("/proc/self/fd/" + std::to_string(found->first)).c_str(), O_RDWR | O_CLOEXEC);
    return fd >= 0 && Check(job_.AddShm(other.number, static_cast<uint64_t>(found->second), fd));
  }

  // The process with the lower number connects.
  bool AddRails(const Member& other, Nanoseconds until) {
    const JobPlan& plan = history_.plan_;
    const bool connects = self_->number < other.number;
    if (plan.rails > 1) {
      std::vector<uint32_t> all(plan.rails), shares(plan.rails, RailTable::kUnits / plan.rails), first(plan.rails, 0);
      for (uint32_t rail = 0; rail < plan.rails; ++rail) all[rail] = rail;
      shares[0] += RailTable::kUnits % plan.rails;
      first[0] = RailTable::kUnits;
      if (!Check(job_.SetRails(other.number, {{0, first}, {64 << 10, shares}}, all, {}))) return false;
    }
    for (uint32_t rail = 0; rail < plan.rails; ++rail) {
      const std::string name = "rail" + std::to_string(rail);
      std::pair<int64_t, int64_t> mine{-1, -1};
      if (connects) {
        const Network::End own{*self_->process, plan.hosts[self_->number]},
            its{*other.process, plan.hosts[other.number]};
        const auto tcp = history_.network_.ConnectTcp(own, its, rail);
        const auto udp =
            plan.kind == RailKind::kUdp ? history_.network_.ConnectUdp(own, its, rail) : std::make_pair(-1, -1);
        mine = {tcp.first, udp.first};
        history_.Publish({generation_, self_->number, other.number, name}, {tcp.second, udp.second});
      } else {
        const auto found = history_.Lookup({generation_, other.number, self_->number, name}, other, until);
        if (!found) return false;
        mine = *found;
      }
      const auto tcp = static_cast<int>(mine.first), udp = static_cast<int>(mine.second);
      if (plan.kind == RailKind::kTcp ? !Check(job_.AddTcp(other.number, rail, tcp))
                                      : !Check(job_.AddUdp(other.number, rail, PathOf(other, tcp, udp))))
        return false;
    }
    return true;
  }

  // Restores fenced rails. The process with the higher number answers when it has fenced the rail, too, and as often.
  void Repair() {
    while (!is_over_) {
      scheduler_.SleepUntil(scheduler_.now() + 200 * kMillisecond);
      const std::lock_guard<std::mutex> lock(repair_mutex_);
      if (!is_connected_) continue;
      for (const Rails::Lost& lost : job_.lost_rails()) Restore(lost);
    }
    repairs_ = false;
  }

  void Restore(const Rails::Lost& lost) {
    const JobPlan& plan = history_.plan_;
    const uint32_t own = self_->number;
    const Member& other = *history_.starts_.at(lost.process);
    Network& network = history_.network_;
    if (network.Between(plan.hosts[own], plan.hosts[other.number], lost.rail).is_cut ||
        network.Between(plan.hosts[other.number], plan.hosts[own], lost.rail).is_cut)
      return;
    const std::string name = "rail" + std::to_string(lost.rail) + ", fences " + std::to_string(lost.fences);
    std::pair<int64_t, int64_t> mine;
    if (own < other.number) {
      if (const auto made = history_.Take({generation_, other.number, own, name})) {
        mine = *made;
      } else {
        return history_.Publish({generation_, own, other.number, name}, {});
      }
    } else {
      if (!history_.Take({generation_, other.number, own, name})) return;
      const Network::End here{*self_->process, plan.hosts[own]}, there{*other.process, plan.hosts[other.number]};
      const auto tcp = network.ConnectTcp(here, there, lost.rail);
      const auto udp =
          plan.kind == RailKind::kUdp ? network.ConnectUdp(here, there, lost.rail) : std::make_pair(-1, -1);
      history_.Publish({generation_, own, other.number, name}, {tcp.second, udp.second});
      mine = {tcp.first, udp.first};
    }
    const auto tcp = static_cast<int>(mine.first), udp = static_cast<int>(mine.second);
    const Status status =
        plan.kind == RailKind::kTcp ? job_.RestoreTcp(lost, tcp) : job_.RestoreUdp(lost, PathOf(other, tcp, udp));
    scheduler_.Trace("restores rail " + std::to_string(lost.rail) + " to process " + std::to_string(other.number) +
                     ": " + (status.ok() ? "ok" : status.message()));
  }

  UdpPath PathOf(const Member& other, int connection, int socket) const {
    const auto key = [&](uint64_t from, uint64_t to) {
      return SipKey{static_cast<SipKey::value_type>(generation_), static_cast<SipKey::value_type>(from),
                    static_cast<SipKey::value_type>(to)};
    };
    return {connection, socket, key(self_->number, other.number), key(other.number, self_->number), 1400, 256 << 10};
  }

  bool Check(const Status& status) {
    if (!status.ok()) scheduler_.Trace("cannot connect: " + status.message());
    return status.ok();
  }

  // Makes a random call, the same in all members. Returns whether the call succeeded.
  bool Call(uint32_t call) {
    std::mt19937 random(call * 1000003u + static_cast<uint32_t>(generation_));
    const size_t sizes[] = {1, 10, 300, 1000, 5000, 5000, 20000, 70000};
    const size_t words = sizes[random() % 8];
    const auto ranks = static_cast<uint32_t>(ranks_.size());
    const auto bytes = static_cast<int64_t>(words * sizeof(uint32_t));
    const Words mine = Content(rank_, call, words * ranks);
    Words result(words * ranks), expected(words * ranks);
    const auto* const operand = reinterpret_cast<const std::byte*>(mine.data());
    auto* const stored = reinterpret_cast<std::byte*>(result.data());
    history_.BeginCall();
    const Nanoseconds began = scheduler_.now();
    Status status;
    bool is_right = true;
    switch (random() % 6) {
      case 5:
        status = Sum(call, &is_right);
        expected = result;
        break;
      case 0:
        status = communicator_->AllReduce(operand, stored, bytes, DType::kU32, Reduction::kSum);
        for (size_t i = 0; i < words; ++i) {
          for (uint32_t rank = 0; rank < ranks; ++rank) expected[i] += Word(rank, call, i);
        }
        break;
      case 1:
        status = communicator_->ReduceScatter(operand, stored, bytes, DType::kU32, Reduction::kSum);
        for (size_t i = 0; i < words; ++i) {
          for (uint32_t rank = 0; rank < ranks; ++rank) expected[i] += Word(rank, call, rank_ * words + i);
        }
        break;
      case 2:
        status = communicator_->AllGather(operand, stored, bytes);
        for (size_t i = 0; i < words * ranks; ++i)
          expected[i] = Word(static_cast<uint32_t>(i / words), call, i % words);
        break;
      case 3: {
        const uint32_t from = (rank_ + ranks - 1) % ranks;
        const auto in = communicator_->Receive(stored, bytes, from, "shift");
        const auto out = communicator_->Send(operand, bytes, (rank_ + 1) % ranks, "shift");
        const Status first = communicator_->Wait(in), second = communicator_->Wait(out);
        status = first.ok() ? second : first;
        for (size_t i = 0; i < words; ++i) expected[i] = Word(from, call, i);
        break;
      }
      default:
        for (uint32_t i = 1; i < ranks && status.ok(); ++i) {
          const uint32_t to = (rank_ + i) % ranks, from = (rank_ + ranks - i) % ranks;
          status = communicator_->Exchange(operand + to * bytes, to, stored + from * bytes, from, bytes);
          for (size_t k = 0; k < words; ++k) expected[from * words + k] = Word(from, call, rank_ * words + k);
        }
    }
    communicator_->Count(status);
    const std::string name = "call " + std::to_string(call) + " of process " + std::to_string(self_->number);
    if (!is_right || (status.ok() && result != expected)) scheduler_.Fail(name + " has a wrong result");
    if (scheduler_.now() - began > static_cast<Nanoseconds>(kDeadline * kSecond) + kSlack &&
        history_.suspects_.count(self_->number) == 0) {
      scheduler_.Fail(name + " took " + std::to_string((scheduler_.now() - began) / kMillisecond) +
                      " ms: " + status.message());
    }
    if (status.ok()) return true;
    scheduler_.Trace(name + ": " + status.message());
    if (!history_.NamesASuspect(status.message())) scheduler_.Fail(name + " names no culprit: " + status.message());
    history_.suspects_.insert(self_->number);
    return false;
  }

  JobHistory& history_;
  Scheduler& scheduler_;
  const std::shared_ptr<Member> self_;
  MessageRegistry lists_;
  Executor executor_{2};
  Job job_{&executor_.messages()};
  uint64_t generation_ = 0;
  std::mutex repair_mutex_;
  bool is_connected_ = false, is_over_ = false, repairs_ = true;
  std::vector<uint32_t> ranks_;  // process numbers by rank
  uint32_t rank_ = 0;
  std::shared_ptr<DeviceGroup> group_;
  std::unique_ptr<DeviceCommunicator> communicator_;
  static constexpr size_t kSummed = 3000;
  std::shared_ptr<MessageSite> sums_;
  int64_t launches_ = 0;
};

void JobHistory::Begin(uint32_t number) {
  const auto member = std::make_shared<Member>();
  member->number = number;
  member->incarnation = ++incarnations_;
  member->process = &scheduler_.AddProcess("process " + std::to_string(number) + "." + std::to_string(incarnations_));
  member->process->at_end = [member] { CloseAllOf(*member->process); };
  starts_[number] = member;
  scheduler_.Spawn(*member->process, [this, member] {
    auto program = std::make_unique<MemberProgram>(*this, member);
    program->Run();
    program = nullptr;
    member->is_done = true;
    if (++done_ == plan_.processes) is_over_ = true;
  });
  // Starts the process again whenever it has been killed.
  if (incarnations_ > plan_.processes) return;
  scheduler_.Spawn(*Scheduler::current()->process, [this, number] {
    while (!is_over_) {
      scheduler_.Block(KeyOf(&is_due_), scheduler_.now() + kSecond);
      if (!std::exchange(is_due_[number], false)) continue;
      scheduler_.Trace("process " + std::to_string(number) + " is started again");
      starts_[number]->is_known_dead = true;
      Begin(number);
    }
  });
}

}  // namespace

void RunJobHistory(uint32_t seed) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // otherwise each large buffer costs page faults
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  static JobHistory* const history = new JobHistory(seed);
  history->Run();
  if (std::getenv("TRACE") != nullptr) {
    std::fprintf(stderr, "hash %016lx, %lu switches, %lu calls\n", history->hash(), history->switches(),
                 history->calls());
  }
  _exit(0);
}

}  // namespace jaxcomm::simulated
