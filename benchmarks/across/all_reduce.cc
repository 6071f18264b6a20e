// All-reduces between processes without JAX: µs (median, 5 %) and, of each process and call, context switches, CPU time
// and page faults.
//
//   all_reduce [shm|tcp|rails] [flat|direct|ring] [processes] [bytes...]   // rails: two, of TCP
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/executor/messages/message_site.h"
#include "cc/executor/messages/scratch.h"
#include "cc/program/message_registry.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/tcp/tcp_transport.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kMaxProcesses = 64, kRails = 2;

struct Options {
  std::string kind = "shm";
  std::string list = "direct";
  uint32_t processes = 4;
  std::vector<int64_t> sizes;
};

// Memory that the processes share besides the measured buffers.
struct Shared {
  struct {
    std::atomic<int> fd{-1};
    pid_t pid;
    uint64_t nonce;
  } addresses[kMaxProcesses];
  std::atomic<uint32_t> arrived{0};
  uint32_t processes;

  void Meet() {
    const uint32_t all = (arrived++ / processes + 1) * processes;
    while (arrived < all) usleep(500);
  }
};

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  _exit(1);
}

std::unique_ptr<Transport> ConnectShm(uint32_t self, Shared* shared, Transport::Events* events) {
  const char* const arena = std::getenv("ARENA_MIB");
  auto made =
      ShmTransport::Create(self, shared->processes, events,
                           arena ? int64_t{std::atoi(arena)} << 20 : ShmTransport::ArenaBytes(shared->processes));
  Check(made.status());
  auto& mine = shared->addresses[self];
  mine.pid = getpid();
  mine.nonce = made.value()->nonce();
  mine.fd = made.value()->fd();
  shared->Meet();
  for (uint32_t other = 0; other < shared->processes; ++other) {
    if (other == self) continue;
    const auto& address = shared->addresses[other];
    const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
    Check(made.value()->AddPeer(other, address.nonce, open(path.c_str(), O_RDWR | O_CLOEXEC)));
  }
  return std::move(made.value());
}

// `sockets`: of this process, by process, and then by rail.
using Sockets = std::vector<std::array<int, kRails>>;

void AddPeers(uint32_t self, const Sockets& sockets, uint32_t rail, TcpTransport& transport) {
  for (uint32_t other = 0; other < sockets.size(); ++other) {
    if (other != self) Check(transport.AddPeer(other, {sockets[other][rail]}));
  }
}

std::unique_ptr<Transport> ConnectTcp(uint32_t self, const Sockets& sockets, Transport::Events* events) {
  auto made = TcpTransport::Create(self, events);
  Check(made.status());
  AddPeers(self, sockets, /*rail=*/0, *made.value());
  return std::move(made.value());
}

// Two like rails, which calls of 64 KiB and more share.
struct TwoRails {
  TwoRails(uint32_t self, const Sockets& sockets, Transport::Events* events)
      : rails(static_cast<uint32_t>(sockets.size()), kRails, events) {
    for (uint32_t other = 0; other < sockets.size(); ++other) {
      if (other != self) Check(rails.AddProcess(other, {{0, {1024, 0}}, {64 << 10, {512, 512}}}, {0, 1}));
    }
    std::vector<Transport*> transports;
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      tcp.push_back(std::move(TcpTransport::Create(self, rails.events(rail)).value()));
      transports.push_back(tcp.back().get());
    }
    rails.Connect(std::move(transports));
    for (uint32_t rail = 0; rail < kRails; ++rail) AddPeers(self, sockets, rail, *tcp[rail]);
    Check(rails.Start());
  }

  Rails rails;
  std::vector<std::unique_ptr<TcpTransport>> tcp;
};

// Both ends of a connection over the loopback device.
std::pair<int, int> MakeConnection() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      connect(one, reinterpret_cast<sockaddr*>(&address), size) != 0) {
    std::perror("no connection");
    std::exit(1);
  }
  const int other = accept(listener, nullptr, nullptr);
  close(listener);
  return {one, other};
}

struct Usage {
  double switches, seconds, faults;
};

Usage Used() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw), seconds(usage.ru_utime) + seconds(usage.ru_stime),
          static_cast<double>(usage.ru_minflt)};
}

std::shared_ptr<MessageSite> MakeSite(const Options& options, uint32_t self, uint32_t number, int64_t bytes,
                                      Stats& stats) {
  static MessageRegistry registry;
  MessageGroup group;
  group.list = "all_reduce/" + options.list + "/" + std::to_string(options.processes);
  for (uint32_t rank = 0; rank < options.processes; ++rank) {
    group.ranks.push_back({rank, rank});
    group.lists.push_back(rank == self ? registry.Find(group.list, rank) : nullptr);
  }
  auto site = MessageSite::Make({"psum", "data", "none", "here"}, Kind::kAllReduce, Reduction::kSum, /*module=*/1,
                                number, {group}, self);
  Check(site.status());
  Check(site.value()->SetLeaves({{DType::kF32, bytes}}, stats));
  return site.value();
}

void Run(const Options& options, uint32_t self, Shared* shared, const Sockets& sockets) {
  Executor executor(2);
  std::unique_ptr<Transport> transport;
  std::unique_ptr<TwoRails> rails;
  if (options.kind == "rails") {
    rails = std::make_unique<TwoRails>(self, sockets, &executor.messages());
  } else {
    transport = options.kind == "tcp" ? ConnectTcp(self, sockets, &executor.messages())
                                      : ConnectShm(self, shared, &executor.messages());
  }
  executor.messages().Connect(rails ? &rails->rails : transport.get());
  std::mutex mutex;
  std::condition_variable wake;
  ScratchPool memory(/*kept=*/0);  // aligned as XLA's
  for (uint32_t number = 0; number < options.sizes.size(); ++number) {
    const int64_t bytes = options.sizes[number];
    const auto site = MakeSite(options, self, number, bytes, executor.stats());
    const std::shared_ptr<std::byte> data = memory.Take(bytes);
    std::memset(data.get(), 0, static_cast<size_t>(bytes));
    std::vector<double> times;
    const int rounds = bytes >= (16 << 20) ? 40 : bytes >= (1 << 20) ? 300 : 2000;
    const int warm = rounds / 4;
    Usage before{};
    for (int round = 0; round < rounds; ++round) {
      if (round == warm) {
        times.clear();
        before = Used();
      }
      const auto start = std::chrono::steady_clock::now();
      bool done = false;
      executor.messages().Arrive(site, round, self, {{data.get()}, {data.get()}}, [&](const Status& status) {
        Check(status);
        std::lock_guard<std::mutex> lock(mutex);
        done = true;
        wake.notify_one();
      });
      std::unique_lock<std::mutex> lock(mutex);
      wake.wait(lock, [&] { return done; });
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    const Usage after = Used();
    const double calls = rounds - warm;
    std::sort(times.begin(), times.end());
    if (self == 0) {
      std::printf("%9lld B  median %9.1f  5%% %9.1f  switches %6.1f  cpu %9.1f  faults %6.1f\n",
                  static_cast<long long>(bytes), times[times.size() / 2], times[times.size() / 20],
                  (after.switches - before.switches) / calls, (after.seconds - before.seconds) / calls * 1e6,
                  (after.faults - before.faults) / calls);
      std::fflush(stdout);
    }
    shared->Meet();
  }
  _exit(0);
}

}  // namespace
}  // namespace jaxcomm

int main(int count, char** arguments) {
  using jaxcomm::Options;
  Options options;
  if (count > 1) options.kind = arguments[1];
  if (count > 2) options.list = arguments[2];
  if (count > 3) options.processes = static_cast<uint32_t>(std::atoi(arguments[3]));
  for (int i = 4; i < count; ++i) options.sizes.push_back(std::atoll(arguments[i]));
  if (options.sizes.empty()) options.sizes = {1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::vector<jaxcomm::Sockets> sockets(options.processes, jaxcomm::Sockets(options.processes));
  for (uint32_t one = 0; one < options.processes; ++one) {
    for (uint32_t other = 0; other < one; ++other) {
      for (uint32_t rail = 0; rail < jaxcomm::kRails; ++rail) {
        std::tie(sockets[one][other][rail], sockets[other][one][rail]) = jaxcomm::MakeConnection();
      }
    }
  }
  void* const memory =
      mmap(nullptr, sizeof(jaxcomm::Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const shared = ::new (memory) jaxcomm::Shared();
  shared->processes = options.processes;
  for (uint32_t process = 0; process < options.processes; ++process) {
    if (fork() == 0) jaxcomm::Run(options, process, shared, sockets[process]);
  }
  while (wait(nullptr) > 0) {
  }
}
