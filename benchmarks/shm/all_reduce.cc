// All-reduces of four processes over shared memory, in µs (median): flat below 8 KiB, else each process reduces its
// chunk from views of the others' and sends it to all.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/transport/shm/shm_transport.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kProcesses = 4;
constexpr int64_t kFlat = 8192, kSegment = 256 << 10;

struct Shared {
  struct {
    std::atomic<int> fd{-1};
    pid_t pid;
    uint64_t nonce;
  } addresses[kProcesses];
  std::atomic<uint32_t> connected{0}, finished{0};
};

class NoEvents : public Transport::Events {
  void OnNotice(uint32_t, std::string_view) override {}
  void OnPeerGone(uint32_t, const Status&) override {}
};

class AllReduce {
 public:
  AllReduce(uint32_t self, Transport* transport, int64_t elements, uint32_t first_call)
      : self_(self), transport_(transport), data_(elements), in_(elements * kProcesses), call_(first_call) {}

  void Run() {
    ++call_;
    const int64_t elements = static_cast<int64_t>(data_.size());
    if (elements * 4 <= kFlat) {
      Exchange(elements);
    } else {
      const int64_t chunk = elements / kProcesses;
      ReduceScatterAndGather(chunk);
    }
  }

 private:
  MessageId Id(uint32_t from, uint32_t to, uint32_t index, uint32_t segment) const {
    return {CallId{1, call_, 0, 0}, from, to, index, segment};
  }

  void Exchange(int64_t elements) {
    Expect(kProcesses - 1);
    std::vector<Receiver> to;
    for (uint32_t other = 0; other < kProcesses; ++other) {
      if (other == self_) continue;
      to.push_back({other, Id(self_, other, 0, 0)});
      float* const in = in_.data() + other * elements;
      transport_->Post(other, Id(other, self_, 0, 0), {{reinterpret_cast<std::byte*>(in), elements * 4, 0}}, false,
                       [this](const Status&, auto) { Arrived(); });
    }
    transport_->Send(to, {{reinterpret_cast<const std::byte*>(data_.data()), elements * 4, 0}}, [](const Status&) {});
    transport_->Flush();
    Wait();
    for (uint32_t other = 0; other < kProcesses; ++other) {
      if (other == self_) continue;
      for (int64_t i = 0; i < elements; ++i) data_[i] += in_[other * elements + i];
    }
  }

  void ReduceScatterAndGather(int64_t chunk) {
    const int64_t bytes = chunk * 4;
    const uint32_t segments = static_cast<uint32_t>((bytes + kSegment - 1) / kSegment);
    Expect(kProcesses * segments);  // the others' chunks come, its own leaves
    sums_left_.assign(segments, kProcesses - 1);
    const auto at = [&](uint32_t owner, uint32_t segment) {
      return data_.data() + owner * chunk + segment * kSegment / 4;
    };
    const auto size = [&](uint32_t segment) { return std::min(kSegment, bytes - segment * kSegment); };
    for (uint32_t segment = 0; segment < segments; ++segment) {
      float* const mine = at(self_, segment);
      const int64_t n = size(segment);
      for (uint32_t other = 0; other < kProcesses; ++other) {
        if (other == self_) continue;
        std::byte* const scratch = reinterpret_cast<std::byte*>(in_.data() + other * chunk + segment * kSegment / 4);
        transport_->Post(other, Id(other, self_, 0, segment), {{scratch, n, 0}}, true,
                         [this, mine, n, scratch, segment](const Status&, auto view) {
                           const std::byte* const bytes = view ? view.get() : scratch;
                           const float* const added = reinterpret_cast<const float*>(bytes);
                           {
                             std::lock_guard<std::mutex> lock(sums_);  // an early message comes on the caller's thread
                             for (int64_t i = 0; i < n / 4; ++i) mine[i] += added[i];
                             view = nullptr;
                             if (--sums_left_[segment] != 0) return;
                           }
                           std::vector<Receiver> to;
                           for (uint32_t third = 0; third < kProcesses; ++third) {
                             if (third != self_) to.push_back({third, Id(self_, third, 1, segment)});
                           }
                           transport_->Send(to, {{reinterpret_cast<const std::byte*>(mine), n, 0}},
                                            [this](const Status&) { Arrived(); });
                           transport_->Flush();
                         });
        // The result goes over what was sent, so it is posted when that has left.
        float* const theirs = at(other, segment);
        transport_->Send({{other, Id(self_, other, 0, segment)}}, {{reinterpret_cast<const std::byte*>(theirs), n, 0}},
                         [this, other, segment, theirs, n](const Status&) {
                           transport_->Post(other, Id(other, self_, 1, segment),
                                            {{reinterpret_cast<std::byte*>(theirs), n, 0}}, false,
                                            [this](const Status&, auto) { Arrived(); });
                         });
      }
      transport_->Flush();
    }
    Wait();
  }

  void Expect(uint32_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ += static_cast<int>(count);
  }
  void Arrived() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--left_ == 0) done_.notify_one();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!done_.wait_for(lock, std::chrono::seconds(20), [&] { return left_ == 0; })) {
      std::fprintf(stderr, "process %u waits for %d messages\n", self_, left_);
      _exit(1);
    }
  }

  const uint32_t self_;
  Transport* const transport_;
  std::vector<float> data_, in_;
  std::vector<uint32_t> sums_left_;  // of each segment of its chunk
  uint32_t call_;
  std::mutex sums_;
  std::mutex mutex_;
  std::condition_variable done_;
  int left_ = 0;
};

void Work(uint32_t self, Shared* shared) {
  NoEvents events;
  auto transport = ShmTransport::Create(self, kProcesses, &events, int64_t{24} << 20);
  if (!transport.ok()) std::fprintf(stderr, "%s\n", transport.status().message().c_str()), _exit(1);
  shared->addresses[self].pid = getpid();
  shared->addresses[self].nonce = transport.value()->nonce();
  shared->addresses[self].fd = transport.value()->fd();
  for (uint32_t other = 0; other < kProcesses; ++other) {
    if (other == self) continue;
    auto& address = shared->addresses[other];
    while (address.fd < 0) usleep(1000);
    const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
    if (!transport.value()->AddPeer(other, address.nonce, open(path.c_str(), O_RDWR | O_CLOEXEC)).ok()) _exit(1);
  }
  for (++shared->connected; shared->connected < kProcesses;) usleep(1000);
  uint32_t launch = 0, sizes = 0;
  for (const int64_t bytes : {int64_t{1} << 10, int64_t{64} << 10, int64_t{1} << 20, int64_t{16} << 20}) {
    AllReduce all_reduce(self, transport.value().get(), bytes / 4, launch);
    std::vector<double> times;
    const int rounds = bytes > (1 << 20) ? 60 : 600;
    for (int round = 0; round < rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      all_reduce.Run();
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    launch += static_cast<uint32_t>(rounds);
    ++sizes;
    std::sort(times.begin(), times.end());
    if (self == 0) {
      std::printf("%9lld B  median %8.1f  5%% %8.1f\n", static_cast<long long>(bytes), times[times.size() / 2],
                  times[times.size() / 20]);
      std::fflush(stdout);
    }
    for (++shared->finished; shared->finished < kProcesses * sizes;) usleep(1000);
  }
}

}  // namespace
}  // namespace jaxcomm

int main() {
  void* const memory =
      mmap(nullptr, sizeof(jaxcomm::Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const shared = ::new (memory) jaxcomm::Shared();
  for (uint32_t process = 0; process < jaxcomm::kProcesses; ++process) {
    if (fork() == 0) {
      jaxcomm::Work(process, shared);
      _exit(0);
    }
  }
  while (wait(nullptr) > 0) {
  }
}
