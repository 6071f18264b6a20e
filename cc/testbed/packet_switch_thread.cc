#include "cc/testbed/packet_switch_thread.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <sstream>
#include <utility>

#include "cc/base/thread.h"

namespace jaxcomm {
namespace {

constexpr int64_t kMillisecond = 1000 * 1000, kSecond = 1000 * kMillisecond;
constexpr int64_t kMostLate = 50 * kMillisecond;  // a frame that has waited for longer counts as sent kMostLate ago
constexpr int64_t kShortestSleep = 10 * 1000;     // a shorter sleep would take longer than asked for
constexpr int64_t kLongestSleep = kSecond / 20;   // after this time the thread checks whether it should stop
constexpr int kNiceness = -15;                    // keeps the thread punctual when the hosts' processes use all cores

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void WriteQueue(std::ostream& out, size_t priority, const OutputQueue::Counts& counts) {
  out << "{\"priority\": " << priority << ", \"packets\": " << counts.packets << ", \"bytes\": " << counts.bytes
      << ", \"ordinary_drops\": " << counts.ordinary_drops << ", \"important_drops\": " << counts.important_drops
      << ", \"mean_s\": " << counts.delays.Mean() * 1e-9
      << ", \"p99_s\": " << static_cast<double>(counts.delays.Quantile(0.99)) * 1e-9
      << ", \"max_s\": " << static_cast<double>(counts.delays.Longest()) * 1e-9 << "}";
}

}  // namespace

Result<std::unique_ptr<PacketSwitchThread>> PacketSwitchThread::Start(const std::vector<HostLink>& links, int64_t mtu,
                                                                      const QueueLimits& limits,
                                                                      const std::vector<PacketSwitch::Link>& spines) {
  std::vector<PacketSwitch::Port> ports;
  for (const HostLink& link : links) ports.push_back(link.port);
  std::unique_ptr<PacketSwitchThread> started(new PacketSwitchThread(ports, limits, spines));
  std::promise<Status> opened;
  started->thread_ = StartThread([&opened, &links, mtu, self = started.get()] {
    const Status status = self->OpenAll(links, mtu);  // opening moves this thread to the devices' namespaces
    opened.set_value(status);
    if (status.ok()) self->Work();
  });
  if (!started->thread_) return Status(Code::kInternal, "the system cannot start a thread for the switch");
  const Status status = opened.get_future().get();
  if (!status.ok()) return status;
  return started;
}

PacketSwitchThread::~PacketSwitchThread() {
  stopping_ = true;
  if (thread_) thread_->join();
}

Status PacketSwitchThread::OpenAll(const std::vector<HostLink>& links, int64_t mtu) {
  for (const HostLink& link : links) {
    Result<Tap> tap = Tap::Open(link.tap, mtu);
    if (!tap.ok()) return tap.status();
    taps_.taps.push_back(std::move(tap.value()));
  }
  return Status();
}

Status PacketSwitchThread::SetLink(size_t port, PacketSwitch::Link link) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (port >= switch_.num_ports()) return InvalidArgument("the switch has no port " + std::to_string(port));
  switch_.SetLink(port, link, Now());
  return Status();
}

Status PacketSwitchThread::SetSpine(size_t spine, PacketSwitch::Link link) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spine >= switch_.num_spines()) return InvalidArgument("the switch has no spine " + std::to_string(spine));
  switch_.SetSpine(spine, link, Now());
  return Status();
}

std::string PacketSwitchThread::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream out;
  out << "{\"ports\": [";
  for (size_t port = 0; port < switch_.num_ports(); ++port) {
    out << (port > 0 ? ", " : "") << "{\"random_losses\": " << switch_.random_losses(port) << ", \"queues\": [";
    const char* comma = "";
    for (size_t priority = 0; priority < kPriorities; ++priority) {
      const OutputQueue::Counts& counts = switch_.queue(port).counts(priority);
      if (counts.packets + counts.ordinary_drops + counts.important_drops == 0) continue;
      out << std::exchange(comma, ", ");
      WriteQueue(out, priority, counts);
    }
    out << "]}";
  }
  out << "], \"spines\": [";
  for (size_t spine = 0; spine < switch_.num_spines(); ++spine) {
    const PacketSwitch::SpineCounts counts = switch_.spine_counts(spine);
    out << (spine > 0 ? ", " : "") << "{\"packets\": " << counts.packets << ", \"bytes\": " << counts.bytes
        << ", \"drops\": " << counts.drops << ", \"random_losses\": " << counts.random_losses << "}";
  }
  out << "]}";
  return out.str();
}

void PacketSwitchThread::Work() {
  prctl(PR_SET_TIMERSLACK, 1);
  setpriority(PRIO_PROCESS, 0, kNiceness);  // Linux applies the niceness to this thread only
  for (int64_t since = Now(); !stopping_;) {
    const int64_t now = Now();
    since = std::max(since, now - kMostLate);
    int64_t next;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      next = switch_.Run(since, now);
    }
    if (next - Now() > kShortestSleep) Await(next);
    // Frames that the next Run finds at hosts count as sent at `next` if `next` has passed, otherwise now.
    since = std::min(next, Now());
  }
}

// Waits until `next`, or until a host with a free link has sent a frame, but at most kLongestSleep.
void PacketSwitchThread::Await(int64_t next) {
  std::vector<pollfd> free;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t port = 0; port < taps_.taps.size(); ++port) {
      if (!switch_.IsReceiving(port)) free.push_back({taps_.taps[port].fd(), POLLIN, 0});
    }
  }
  const int64_t left = std::clamp<int64_t>(next - Now(), 0, kLongestSleep);
  const timespec timeout{left / kSecond, left % kSecond};
  ppoll(free.data(), free.size(), &timeout, nullptr);
}

}  // namespace jaxcomm
