#include "cc/simulated_system/member_program.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <optional>
#include <random>

namespace jaxcomm::simulated {
namespace {

constexpr double kDeadline = 5;  // seconds
// The longest time that a call may take: the time until all ranks have arrived, plus the time from the last progress to
// the deadline. A call takes that long if two processes are stopped one after the other.
constexpr Nanoseconds kLongest = static_cast<Nanoseconds>(2 * kDeadline * kSecond) + 3 * kSecond;
constexpr Nanoseconds kConnecting = 20 * kSecond;  // time limit for connecting a generation
constexpr size_t kSummed = 3000;                   // number of elements of the sums that select from several schedules
constexpr size_t kLateSummed = 20001;              // number of elements of the sums that may leave out late segments
constexpr int64_t kSegment = 1024;                 // number of bytes of a segment of these sums

float Summand(uint32_t rank, uint32_t call, size_t index) {
  return 0.1f * static_cast<float>(Word(rank, call, index) % 1000);
}

// Returns the key for bytes from process `from` to process `to`.
template <typename Key>
Key KeyOf(uint64_t generation, uint64_t from, uint64_t to) {
  using Part = typename Key::value_type;
  return Key{static_cast<Part>(generation), static_cast<Part>(from), static_cast<Part>(to)};
}

// While this object lives, allocations of the calling task may fail.
class MayLackMemory {
 public:
  MayLackMemory() { Scheduler::current()->may_lack_memory = true; }
  ~MayLackMemory() { Scheduler::current()->may_lack_memory = false; }
};

}  // namespace

void MemberProgram::Run() {
  executor_.SetDeadline(kDeadline);
  scheduler_.Spawn(*self_->process, [this] { Repair(); });
  bool has_failed = false;
  for (;;) {
    const Barrier barrier = service_.Enter(*self_, has_failed);
    const auto found = barrier.members.find(self_->number);
    if (found == barrier.members.end() || found->second != self_->incarnation) return EndReplaced();
    if (barrier.is_last) break;
    has_failed = false;
    if (barrier.generation != generation_) {
      generation_ = barrier.generation;
      has_failed = !Connect(barrier);
      scheduler_.Trace(has_failed ? "could not connect" : "has connected");
      if (has_failed) {
        faults_.Suspect(self_->number);
        service_.PublishFailure(generation_, self_->number);
      }
    }
    scheduler_.SleepUntil(scheduler_.now() + scheduler_.RandomTime(faults_.have_struck() ? 4 * kSecond : kMillisecond));
    const uint32_t calls = 1 + static_cast<uint32_t>(barrier.number * 7919 % 7);
    for (uint32_t call = 0; call < calls && !has_failed && communicator_; ++call) {
      has_failed = !Call(static_cast<uint32_t>(barrier.number) * 16 + call);
    }
  }
  End();
}

// Ends this incarnation at once, because the process has been started again elsewhere.
void MemberProgram::EndReplaced() {
  scheduler_.Trace("was replaced, and ends");
  scheduler_.Kill(*self_->process);
  scheduler_.Block({1, 1});
}

void MemberProgram::End() {
  communicator_ = nullptr;
  Leave();
  is_over_ = true;
  while (repairs_) scheduler_.SleepUntil(scheduler_.now() + kMillisecond);
}

void MemberProgram::Leave() {
  const std::lock_guard<std::mutex> lock(repair_mutex_);
  is_connected_ = false;
  job_.Close();
  const Status status = executor_.messages().Disconnect(Clock::now() + std::chrono::seconds(10));
  if (!status.ok())
    scheduler_.Fail("process " + std::to_string(self_->number) + " could not disconnect: " + status.message());
  job_.Reset();
}

bool MemberProgram::Connect(const Barrier& barrier) {
  const Nanoseconds until = scheduler_.now() + kConnecting;
  communicator_ = nullptr;
  for (std::shared_ptr<MessageSite>* const site : {&sums_, &late_sums_}) {
    if (*site) (*site)->Forget(executor_);
    *site = nullptr;
  }
  Leave();
  const uint32_t own = self_->number;
  if (!Check(job_.Open(own, plan_.processes, /*same_job=*/true))) return false;
  std::vector<NamedRail> rails;
  for (uint32_t rail = 0; rail < plan_.rails; ++rail) rails.push_back({"eth" + std::to_string(rail), plan_.kind});
  others_.clear();
  for (const auto& [number, incarnation] : barrier.members) {
    if (number == own) continue;
    others_[number] = service_.Latest(number);
    if (others_[number]->incarnation != incarnation) return false;  // started again since the barrier
  }
  const auto shm = job_.Shm();
  if (!Check(shm.status())) return false;
  for (const auto& [number, other] : others_) {
    service_.Publish({generation_, own, number, "shm"},
                     {shm.value()->fd(), static_cast<int64_t>(shm.value()->nonce())});
  }
  if (!Check(job_.OpenRails(rails))) return false;
  for (const auto& [number, other] : others_) {
    const bool shares = plan_.hosts[number] == plan_.hosts[own];
    if (shares ? !AddShm(*other, until) : !AddRails(*other, until)) return false;
  }
  std::vector<uint32_t> hosts(plan_.processes, Job::kAbsent);
  std::vector<std::string> host_names(plan_.processes);
  for (const auto& [number, incarnation] : barrier.members) {
    hosts[number] = plan_.hosts[number];
    host_names[number] = "host" + std::to_string(plan_.hosts[number]);
  }
  if (!Check(job_.Start(hosts, host_names))) return false;
  constexpr int kProcessors = 2;  // of each host
  executor_.messages().Connect(job_.transport(), std::count(hosts.begin(), hosts.end(), hosts[own]) <= kProcessors);
  for (const uint32_t absent : job_.absent()) {
    executor_.messages().OnPeerGone(
        absent, Status(Code::kInternal, "process " + std::to_string(absent) + " is not among the live processes"));
  }
  std::vector<MessageRank> devices;
  for (const auto& [number, incarnation] : barrier.members) {
    if (number == own) rank_ = static_cast<uint32_t>(devices.size());
    devices.push_back(job_.Rank(number, number));
  }
  num_ranks_ = static_cast<uint32_t>(devices.size());
  is_connected_ = true;
  if (num_ranks_ == 1) return true;
  const auto group = std::make_shared<DeviceGroup>(DeviceGroup::NameOf(devices), devices, 0);
  communicator_ = std::make_unique<DeviceCommunicator>(executor_, lists_, ChooseDirect, group, rank_);
  return Check(MakeSums(devices)) && Check(MakeLateSums(devices));
}

// Makes the call site for sums that select from several schedules. The generation determines the selector's rule.
Status MemberProgram::MakeSums(const std::vector<MessageRank>& devices) {
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

// Makes the call site for sums that may leave out late segments. The generation determines the time limit.
Status MemberProgram::MakeLateSums(const std::vector<MessageRank>& devices) {
  const std::string list = "all_reduce/direct/" + std::to_string(devices.size());
  MessageGroup group{devices, list, {}};
  for (uint32_t rank = 0; rank < devices.size(); ++rank) {
    group.lists.push_back(rank == rank_ ? lists_.Find(list, rank) : nullptr);
  }
  const double time_limits[] = {0, 0.0002, 0.002};  // seconds; 0: the time limit follows the median
  const AllowedLoss loss{{0.3}, kSegment, time_limits[generation_ % 3], /*makes_up=*/false};
  auto made = MessageSite::Make({"psum", "data", "direct", "train.py:58"}, {Kind::kAllReduce, Reduction::kSum, loss},
                                77, 1, {group}, self_->number);
  if (!made.ok()) return made.status();
  late_sums_ = made.value();
  late_launches_ = 0;
  return late_sums_->SetLeaves({{DType::kF32, 4 * kLateSummed}}, executor_.stats());
}

// Sums powers of two, and may leave out late segments. All members must get the same bits. A rank's segment must be
// missing in the sum exactly if it is reported to the rank as lost. No important segment may be missing.
CheckedCall MemberProgram::LateSum(uint32_t call) {
  std::vector<float> values(kLateSummed, std::ldexp(1.0f, static_cast<int>(rank_)));
  std::vector<std::byte> important((4 * kLateSummed + kSegment - 1) / kSegment);
  for (size_t i = 0; i < important.size(); ++i) important[i] = std::byte{Word(rank_, call, i) % 2 == 0};
  std::vector<std::byte> lost = important;
  Buffers buffers{{reinterpret_cast<std::byte*>(values.data())}, {reinterpret_cast<std::byte*>(values.data())}};
  buffers.leading = buffers.leading_result = lost.data();
  const auto sum = std::make_shared<PendingCall>();
  const MayLackMemory may_lack_memory;
  executor_.messages().Arrive(late_sums_, late_launches_++, rank_, std::move(buffers),
                              [sum](const Status& end) { sum->End(end); });
  CheckedCall checked{sum->Wait(executor_), true};
  if (!checked.status.ok()) return checked;
  for (size_t i = 0; i < kLateSummed; ++i) {
    const size_t segment = 4 * i / kSegment;
    const bool is_there = static_cast<uint32_t>(values[i]) >> rank_ & 1;
    checked.is_right = checked.is_right && is_there == (lost[segment] == std::byte{0});
    checked.is_right = checked.is_right && (is_there || important[segment] == std::byte{0});
  }
  checked.is_right = checked.is_right && sums_of_all_.AreSame(generation_, -late_launches_, values);
  return checked;
}

// Runs a few sums, which are in flight at the same time. All members must get the same bits.
CheckedCall MemberProgram::Sum(uint32_t call) {
  constexpr int kFlights = 3;
  std::vector<std::vector<float>> values(kFlights, std::vector<float>(kSummed));
  std::vector<std::shared_ptr<PendingCall>> sums;
  for (int i = 0; i < kFlights; ++i) {
    std::vector<float>& operand = values[static_cast<size_t>(i)];
    for (size_t k = 0; k < kSummed; ++k) operand[k] = Summand(rank_, call, k);
    if (scheduler_.Random(3) == 0) scheduler_.SleepUntil(scheduler_.now() + scheduler_.RandomTime(3 * kMillisecond));
    auto* const bytes = reinterpret_cast<std::byte*>(operand.data());
    sums.push_back(std::make_shared<PendingCall>());
    Buffers buffers{{bytes}, {bytes}};
    Done done = [sum = sums.back()](const Status& end) { sum->End(end); };
    const MayLackMemory may_lack_memory;
    executor_.messages().Arrive(sums_, launches_++, rank_, std::move(buffers), std::move(done));
  }
  CheckedCall all{Status(), true};
  for (int i = 0; i < kFlights; ++i) {
    const std::vector<float>& sum = values[static_cast<size_t>(i)];
    Status end;
    {
      const MayLackMemory may_lack_memory;
      end = sums[static_cast<size_t>(i)]->Wait(executor_);
    }
    if (!end.ok()) {
      if (all.status.ok()) all.status = std::move(end);
      continue;
    }
    for (size_t k = 0; k < kSummed; ++k) {
      float expected = 0;
      for (uint32_t rank = 0; rank < num_ranks_; ++rank) expected += Summand(rank, call, k);
      all.is_right = all.is_right && std::abs(sum[k] - expected) < 0.01f;
    }
    all.is_right = all.is_right && sums_of_all_.AreSame(generation_, launches_ - kFlights + i, sum);
    // A wrong sum is a fault even if another sum of this call fails.
    if (!all.is_right) scheduler_.Fail("a sum of process " + std::to_string(self_->number) + " is wrong");
  }
  return all;
}

bool MemberProgram::AddShm(const Member& other, Nanoseconds until) {
  const auto found = service_.Lookup({generation_, other.number, self_->number, "shm"}, other, until);
  if (!found || other.process->state == Process::State::kKilled) return false;
  const int fd = open(("/proc/self/fd/" + std::to_string(found->first)).c_str(), O_RDWR | O_CLOEXEC);
  return fd >= 0 && Check(job_.AddShm(other.number, static_cast<uint64_t>(found->second), fd));
}

// The process with the lower number makes the connections. The process with the higher number accepts them.
bool MemberProgram::AddRails(const Member& other, Nanoseconds until) {
  const bool connects = self_->number < other.number;
  if (plan_.rails > 1) {
    std::vector<uint32_t> all(plan_.rails), shares(plan_.rails, RailTable::kUnits / plan_.rails), first(plan_.rails, 0);
    for (uint32_t rail = 0; rail < plan_.rails; ++rail) all[rail] = rail;
    shares[0] += RailTable::kUnits % plan_.rails;
    first[0] = RailTable::kUnits;
    if (!Check(job_.SetRails(other.number, {{0, first}, {64 << 10, shares}}, all, {}))) return false;
  }
  for (uint32_t rail = 0; rail < plan_.rails; ++rail) {
    const std::string name = "rail" + std::to_string(rail);
    CoordinationService::Value mine{-1, -1};
    if (connects) {
      mine = ConnectRail(other, rail, name);
    } else {
      const auto found = service_.Lookup({generation_, other.number, self_->number, name}, other, until);
      if (!found) return false;
      mine = *found;
    }
    const auto [tcp, udp] = Accepted(mine);
    if (plan_.kind == RailKind::kTcp ? !Check(job_.AddTcp(other.number, rail, TcpPathOf(other, tcp)))
                                     : !Check(job_.AddUdp(other.number, rail, UdpPathOf(other, tcp, udp))))
      return false;
  }
  return true;
}

// Restores fenced rails. The process with the higher number reconnects a rail once both processes have fenced the rail
// the same number of times.
void MemberProgram::Repair() {
  while (!is_over_) {
    scheduler_.SleepUntil(scheduler_.now() + 200 * kMillisecond);
    const std::lock_guard<std::mutex> lock(repair_mutex_);
    if (!is_connected_) continue;
    for (const Rails::Lost& lost : job_.lost_rails()) Restore(lost);
  }
  repairs_ = false;
}

void MemberProgram::Restore(const Rails::Lost& lost) {
  const uint32_t own = self_->number;
  const Member& other = *others_.at(lost.process);
  if (other.process->state == Process::State::kKilled) return;
  if (network_.Between(plan_.hosts[own], plan_.hosts[other.number], lost.rail).is_cut ||
      network_.Between(plan_.hosts[other.number], plan_.hosts[own], lost.rail).is_cut)
    return;
  const std::string name = "rail" + std::to_string(lost.rail) + ", fences " + std::to_string(lost.fences);
  CoordinationService::Value mine;
  if (own < other.number) {
    if (const auto made = service_.Take({generation_, other.number, own, name})) {
      mine = *made;
    } else {
      return service_.Publish({generation_, own, other.number, name}, {});
    }
  } else {
    if (!service_.Take({generation_, other.number, own, name})) return;
    mine = ConnectRail(other, lost.rail, name);
  }
  const auto [tcp, udp] = Accepted(mine);
  const Status status = plan_.kind == RailKind::kTcp ? job_.RestoreTcp(lost, TcpPathOf(other, tcp))
                                                     : job_.RestoreUdp(lost, UdpPathOf(other, tcp, udp));
  scheduler_.Trace("restores rail " + std::to_string(lost.rail) + " to process " + std::to_string(other.number) + ": " +
                   (status.ok() ? "ok" : status.message()));
}

// Connects a rail, and publishes the other side's sockets. Returns this side's TCP socket, and its UDP socket or -1.
CoordinationService::Value MemberProgram::ConnectRail(const Member& other, uint32_t rail, const std::string& name) {
  const Network::End own{*self_->process, plan_.hosts[self_->number]}, its{*other.process, plan_.hosts[other.number]};
  const auto tcp = network_.ConnectTcp(own, its, rail);
  const auto udp = plan_.kind == RailKind::kUdp ? network_.ConnectUdp(own, its, rail) : std::make_pair(-1, -1);
  service_.Publish({generation_, self_->number, other.number, name}, {tcp.second, udp.second});
  return {tcp.first, udp.first};
}

std::pair<int, int> MemberProgram::Accepted(const CoordinationService::Value& sockets) {
  const std::pair<int, int> accepted{static_cast<int>(sockets.first), static_cast<int>(sockets.second)};
  network_.Accept(accepted.first);
  if (accepted.second >= 0) network_.Accept(accepted.second);
  return accepted;
}

TcpPath MemberProgram::TcpPathOf(const Member& other, int connection) const {
  return {connection, plan_.is_encrypted ? std::optional(CipherKeysOf(other)) : std::nullopt};
}

UdpPath MemberProgram::UdpPathOf(const Member& other, int connection, int socket) const {
  const auto key = [&](uint64_t from, uint64_t to) { return KeyOf<SipKey>(generation_, from, to); };
  PacketKeys keys{SealKind::kSipHash, key(self_->number, other.number), key(other.number, self_->number), {}};
  if (plan_.is_encrypted) keys = {SealKind::kGcm, {}, {}, CipherKeysOf(other)};
  return {connection, {{socket, keys}}, 1400, 256 << 10};
}

CipherKeys MemberProgram::CipherKeysOf(const Member& other) const {
  const auto key = [&](uint64_t from, uint64_t to) { return KeyOf<CipherKey>(generation_, from, to); };
  return {key(self_->number, other.number), key(other.number, self_->number)};
}

bool MemberProgram::Check(const Status& status) {
  if (!status.ok()) scheduler_.Trace("cannot connect: " + status.message());
  return status.ok();
}

// Makes a random call, unless this process lacks the memory for the operands.
CheckedCall MemberProgram::CallWithMemory(uint32_t call, size_t words, std::mt19937& random) try {
  const MayLackMemory may_lack_memory;
  return CallAtRandom(*communicator_, call, words, random);
} catch (const std::bad_alloc&) {
  return {Status(Code::kInternal, "no memory for the operands"), true};
}

CheckedCall MemberProgram::MakeCall(uint32_t call, size_t words, std::mt19937& random) {
  const uint32_t kind = random() % 12;
  return kind < 2 ? Sum(call) : kind == 2 ? LateSum(call) : CallWithMemory(call, words, random);
}

// Makes a random call, the same in all members. Returns whether the call succeeded.
bool MemberProgram::Call(uint32_t call) {
  std::mt19937 random(call * 1000003u + static_cast<uint32_t>(generation_));
  const size_t sizes[] = {1, 1, 10, 10, 300, 300, 300, 1000, 1000, 1000, 5000, 5000, 5000, 5000, 20000, 70000};
  const size_t words = sizes[random() % 16];
  faults_.OnCall(self_->number, call);
  const Nanoseconds began = scheduler_.now();
  const auto [status, is_right] = MakeCall(call, words, random);
  communicator_->Count(status);
  const std::string name = "call " + std::to_string(call) + " of process " + std::to_string(self_->number);
  if (status.ok() && !is_right) scheduler_.Fail(name + " has a wrong result");
  const Nanoseconds took = scheduler_.now() - began;
  if (took > kLongest && !faults_.IsSuspect(self_->number)) {
    scheduler_.Fail(name + " took " + std::to_string(took / kMillisecond) + " ms: " + status.message());
  }
  if (status.ok()) return true;
  scheduler_.Trace(name + ": " + status.message());
  const bool lacks_memory = faults_.IsSuspect(self_->number) && status.message().find("memory") != std::string::npos;
  // A replaced incarnation sees the other members leave, and cannot know that its replacement is the reason.
  if (!lacks_memory && !self_->is_replaced && !faults_.NamesSuspect(status.message(), call))
    scheduler_.Fail(name + " names no culprit: " + status.message());
  faults_.Suspect(self_->number);
  return false;
}

}  // namespace jaxcomm::simulated
