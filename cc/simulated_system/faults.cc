#include "cc/simulated_system/faults.h"

#include <algorithm>

namespace jaxcomm::simulated {
namespace {

constexpr uint64_t kCalls = 100;  // each fault begins at a random one of the first kCalls calls

}  // namespace

Faults::Faults(Scheduler& scheduler, Network& network, const JobPlan& plan, CoordinationService& service,
               std::function<void(uint32_t)> start)
    : scheduler_(scheduler), network_(network), plan_(plan), service_(service), start_(std::move(start)) {
  for (int fault = 0; fault < plan.faults; ++fault) calls_of_strikes_.insert(1 + Random(kCalls));
}

// Faults strike a moment after the call begins, so that many of them strike during calls.
void Faults::OnCall(uint32_t process, uint32_t call) {
  latest_calls_[process] = call;
  ++calls_;
  for (auto& strikes = calls_of_strikes_; !strikes.empty() && *strikes.begin() <= calls_;
       strikes.erase(strikes.begin())) {
    Extend(scheduler_.now() + 2 * kMillisecond);
    scheduler_.At(scheduler_.now() + RandomTime(Random(2) == 0 ? kMillisecond / 10 : 2 * kMillisecond),
                  [this] { Strike(); });
  }
}

bool Faults::NamesSuspect(const std::string& error, uint32_t call) const {
  if (have_lacked_memory_ && error.find("has no memory for the") != std::string::npos) return true;
  if (error.find("not sent all messages") != std::string::npos) return true;
  if (error.find("not accepted all messages") != std::string::npos) return true;
  std::set<uint32_t> accepted = suspects_;
  for (const auto& [process, latest] : latest_calls_) {
    if (latest < call) accepted.insert(process);
  }
  for (const char* const word : {"rank", "process"}) {
    for (size_t at = error.find(word); at != std::string::npos; at = error.find(word, at + 1)) {
      const size_t first = error.find_first_of("0123456789", at), end = error.find_first_not_of("0123456789,", first);
      if (first == std::string::npos) continue;
      std::string numbers = "," + error.substr(first, end == std::string::npos ? end : end - first) + ",";
      for (const uint32_t suspect : accepted) {
        if (numbers.find("," + std::to_string(suspect) + ",") != std::string::npos) return true;
      }
    }
  }
  return false;
}

void Faults::SuspectHosts(uint32_t one, uint32_t other) {
  for (uint32_t process = 0; process < plan_.processes; ++process) {
    if (plan_.hosts[process] == one || plan_.hosts[process] == other) Suspect(process);
  }
}

void Faults::Strike() {
  const uint32_t number = Random(plan_.processes);
  const std::shared_ptr<Member> member = service_.Latest(number);
  switch (Random(8)) {
    case 0:
    case 1:
      return Kill(member);
    case 2:
      return StopFor(member, RandomTime(Random(2) == 0 ? kSecond : 12 * kSecond));
    case 3:
      return Replace(member);
    case 4:
      return Degrade();
    case 5:
      return TakeMemory(member);
    default:
      return CutHost(number);
  }
}

void Faults::StopFor(const std::shared_ptr<Member>& member, Nanoseconds time) {
  if (member->process->state != Process::State::kRuns) return;
  scheduler_.Trace("process " + std::to_string(member->number) + " stops for " + std::to_string(time / kMillisecond) +
                   " ms");
  Suspect(member->number);
  scheduler_.Stop(*member->process);
  Extend(scheduler_.now() + time);
  scheduler_.At(scheduler_.now() + time, [this, member] {
    if (member->process->state == Process::State::kStopped) scheduler_.Continue(*member->process);
  });
}

// Stops a process for so long that it is started again elsewhere. Later the stopped process continues.
void Faults::Replace(const std::shared_ptr<Member>& member) {
  if (member->process->state != Process::State::kRuns || member->is_done) return;
  StopFor(member, kSecond + RandomTime(10 * kSecond));
  scheduler_.Trace("process " + std::to_string(member->number) + " is replaced");
  member->is_replaced = true;
  const Nanoseconds noticed = scheduler_.now() + RandomTime(kSecond);
  Extend(noticed + kSecond);
  scheduler_.At(noticed, [this, member] {
    service_.ReportEnd(*member);
    start_(member->number);
  });
}

// Makes a process lack memory for a while.
void Faults::TakeMemory(const std::shared_ptr<Member>& member) {
  const Nanoseconds time = RandomTime(Random(2) == 0 ? kMillisecond : kSecond);
  scheduler_.Trace("process " + std::to_string(member->number) + " lacks memory for " +
                   std::to_string(time / kMillisecond) + " ms");
  Suspect(member->number);
  member->process->lacks_memory = have_lacked_memory_ = true;
  Extend(scheduler_.now() + time);
  scheduler_.At(scheduler_.now() + time, [member] { member->process->lacks_memory = false; });
}

void Faults::OnAbort(Process& process) {
  if (!process.lacks_memory) scheduler_.Fail(process.name + " has aborted");
  for (uint32_t number = 0; number < plan_.processes; ++number) {
    const std::shared_ptr<Member> member = service_.Latest(number);
    if (member->process == &process) Kill(member);
  }
  scheduler_.Kill(process);
}

// Makes a link slow for a while, or makes it lose half of all datagrams or all long ones. Wall clocks jump, too.
void Faults::Degrade() {
  const uint32_t from = plan_.hosts[Random(plan_.processes)], to = plan_.hosts[Random(plan_.processes)];
  const uint32_t rail = Random(plan_.rails);
  Link& link = network_.Between(from, to, rail);
  const Nanoseconds time = RandomTime(5 * kSecond);
  scheduler_.Trace("rail " + std::to_string(rail) + " from host " + std::to_string(from) + " to " + std::to_string(to) +
                   " degrades for " + std::to_string(time / kMillisecond) + " ms");
  scheduler_.Jump(RandomTime(20 * kSecond) - 10 * kSecond);
  if (from == to) return;
  SuspectHosts(from, to);
  Extend(scheduler_.now() + time);
  if (link.faults++ == 0) link.without_faults = link;
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
  scheduler_.At(scheduler_.now() + time, [&link] {
    if (--link.faults == 0) static_cast<LinkQuality&>(link) = link.without_faults;
  });
}

// Cuts one rail or all rails between two hosts, in one direction or in both directions.
void Faults::CutHost(uint32_t number) {
  const uint32_t other = plan_.hosts[Random(plan_.processes)], host = plan_.hosts[number];
  if (other == host) return;
  const uint32_t only = Random(2) == 0 ? Random(plan_.rails) : ~0u;
  const bool both = Random(3) != 0;
  const Nanoseconds time = RandomTime(Random(2) == 0 ? kSecond : 25 * kSecond);
  scheduler_.Trace("hosts " + std::to_string(host) + " and " + std::to_string(other) + " are cut for " +
                   std::to_string(time / kMillisecond) + " ms, rail " + std::to_string(static_cast<int>(only)) +
                   (both ? "" : ", one way"));
  SuspectHosts(host, other);
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

void Faults::Kill(const std::shared_ptr<Member>& member) {
  if (member->process->is_dying || member->is_done || member->is_replaced) return;
  scheduler_.Trace("process " + std::to_string(member->number) + " is killed");
  Suspect(member->number);
  scheduler_.Kill(*member->process);
  const Nanoseconds noticed = scheduler_.now() + RandomTime(kSecond),
                    again = scheduler_.now() + RandomTime(3 * kSecond);
  Extend(std::max(noticed, again));
  scheduler_.At(noticed, [this, member] { service_.ReportEnd(*member); });
  scheduler_.At(again, [this, member] {
    if (!member->is_known_dead) service_.ReportEnd(*member);
    start_(member->number);
  });
}

}  // namespace jaxcomm::simulated
