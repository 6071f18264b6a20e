// Tests rails over real connections. The rails are reset and restored while many threads send.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/transport/fabric/testing/node.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kRails = 3, kThreads = 3, kMessages = 30;

enum class Kind { kTcp, kUdp, kFabric };
using Kinds = std::array<Kind, kRails>;

// A rail of a process.
struct OwnRail {
  OwnRail(Kind kind, uint32_t self, Transport::Events* events) {
    if (kind == Kind::kTcp) {
      tcp = std::move(TcpTransport::Create(self, events).value());
    } else if (kind == Kind::kFabric) {
      std::unique_ptr<Endpoint> endpoint = std::move(OpenEndpoint(RxmOverTcp::kProvider).value());
      fabric = std::move(FabricTransport::Create(self, kFabricProcesses, events, std::move(endpoint)).value());
    } else {
      udp = std::move(UdpTransport::Create(self, events).value());
    }
  }
  RailTransport* transport() const {
    if (fabric) return fabric.get();
    return tcp ? static_cast<RailTransport*>(tcp.get()) : udp.get();
  }
  void Leave() { fabric ? fabric->Leave() : tcp ? tcp->Leave() : udp->Leave(); }
  // Keeps a second descriptor of the connection, because the transport may close the first one at any time. `there`:
  // the rail of the other process. `number`: the number of the path.
  Status Connect(uint32_t process, const UdpPath& path, const OwnRail& there, uint8_t number) {
    connection = dup(path.connection);
    if (udp) return udp->AddPeer(process, path);
    close(path.sockets[0].socket);
    if (fabric) {
      SipKey sends = path.sockets[0].keys.sends, receives = path.sockets[0].keys.receives;
      sends[15] = receives[15] = number;
      return fabric->AddPeer(process, {path.connection, there.fabric->domain().address, sends, receives});
    }
    return tcp->AddPeer(process, {path.connection});
  }

  std::unique_ptr<TcpTransport> tcp;
  std::unique_ptr<UdpTransport> udp;
  std::unique_ptr<FabricTransport> fabric;
  int connection = -1;
};

class Process : public Transport::Events {
 public:
  Process(uint32_t self, const Kinds& kinds) : rails(2, kRails, this), self(self) {
    std::vector<RailTransport*> transports;
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      own.emplace_back(kinds[rail], self, rails.events(rail));
      transports.push_back(own.back().transport());
    }
    rails.Connect(std::move(transports));
    EXPECT_TRUE(rails.AddProcess(1 - self, {{0, {342, 341, 341}}}, {0, 1, 2}).ok());
  }
  void OnNotice(uint32_t, std::string_view notice) override {
    Record([&] { notice[0] == 'p' ? (void)posted.emplace(notice) : (void)notices.emplace_back(notice); });
  }
  void OnPeerGone(uint32_t, const Status& why) override { EXPECT_TRUE(leaves) << why.message(); }
  void Record(const std::function<void()>& change) {
    std::lock_guard<std::mutex> lock(mutex);
    change();
    changed.notify_all();
  }

  Rails rails;
  const uint32_t self;
  std::vector<OwnRail> own;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> notices;
  std::set<std::string> posted;  // messages that the other process has posted
  std::atomic<bool> leaves{false};
};

struct Case {
  Kinds kinds;
  double lost;  // fraction of lost packets
};

constexpr int64_t kSpan = 1000;  // bytes per span of a lossy message; spans with even numbers are important

template <typename Byte, typename Memory>
std::vector<BasicSpan<Byte>> Spans(Memory& bytes) {
  std::vector<BasicSpan<Byte>> spans;
  const auto size = static_cast<int64_t>(bytes.size());
  for (int64_t at = 0; at < size; at += kSpan) spans.push_back({bytes.data() + at, std::min(kSpan, size - at), at});
  return spans;
}

// Returns the bytes with zeros in place of the lost bytes. Expects that at most `may_lose` bytes were lost, and that no
// lost byte was important.
Bytes Without(Bytes bytes, const std::vector<ByteRange>& lost, int64_t may_lose) {
  for (const ByteRange& range : lost) {
    EXPECT_EQ(range.begin / kSpan % 2, 1);
    EXPECT_EQ((range.end - 1) / kSpan % 2, 1);
    std::fill(bytes.begin() + range.begin, bytes.begin() + range.end, std::byte{0});
    may_lose -= range.end - range.begin;
  }
  EXPECT_GE(may_lose, 0);
  return bytes;
}

class SocketRailsTest : public testing::TestWithParam<Case> {
 protected:
  // Returns both ends of a new path. The path loses the test case's fraction of packets.
  std::pair<UdpPath, UdpPath> NewPaths(uint32_t rail) {
    if (GetParam().lost == 0) return Paths();
    lines_[rail] = std::make_unique<BadLine>(BadLine::Faults{++seed_, GetParam().lost, 0, 0});
    return Paths(lines_[rail].get());
  }

 private:
  std::array<std::unique_ptr<BadLine>, kRails> lines_;
  unsigned seed_ = 0;
};

TEST_P(SocketRailsTest, EveryMessageComesOnceWhileRailsAreResetAndRestored) {
  const Kinds& kinds = GetParam().kinds;
  if (std::count(kinds.begin(), kinds.end(), Kind::kFabric) > 0 && !OpenEndpoint(RxmOverTcp::kProvider).ok())
    GTEST_SKIP() << "this machine lacks libfabric or the provider";
  std::array<std::unique_ptr<Process>, 2> processes = {std::make_unique<Process>(0, GetParam().kinds),
                                                       std::make_unique<Process>(1, GetParam().kinds)};
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    const auto [one, other] = NewPaths(rail);
    EXPECT_TRUE(processes[0]->own[rail].Connect(1, one, processes[1]->own[rail], 0).ok());
    EXPECT_TRUE(processes[1]->own[rail].Connect(0, other, processes[0]->own[rail], 0).ok());
  }
  for (auto& each : processes) EXPECT_TRUE(each->rails.Start().ok());

  const auto run = [&](Process* self, uint32_t thread) {
    std::mt19937 random(10 * self->self + thread);
    for (uint32_t i = 0; i < kMessages; ++i) {
      const uint32_t other = 1 - self->self;
      const size_t size = i % 2 ? 200 : 100000;
      // Each iteration is a separate call, in which both sides post and send.
      const auto id = [&](uint32_t from) {
        return MessageId{{1, thread * kMessages + i, 0, 0}, from, 1 - from, 0, i % 8, 1 << 20};
      };
      const CallId cancelled{2, thread * kMessages + i, 0, 0};
      auto memory = std::make_unique<Bytes>(size);
      auto bytes = std::make_unique<Bytes>(Pattern(size, i));
      auto lost = std::make_unique<Bytes>(size);
      uint32_t came = 0, went = 0;
      self->rails.Post(other, {cancelled, other, self->self, 0, 0, 1 << 20}, All(*lost), false,
                       [](const Status&, std::shared_ptr<const std::byte>) {});
      const int64_t may_lose = i % 3 ? 0 : static_cast<int64_t>(size) / 10;
      std::vector<ByteRange> missing;
      const auto received = [&, self](const Status& status, const std::shared_ptr<const std::byte>& view,
                                      const std::vector<ByteRange>& ranges) {
        self->Record([&] {
          if (view) std::copy(view.get(), view.get() + size, memory->data());
          ++came;
          missing = ranges;
          EXPECT_TRUE(status.ok()) << status.message();
        });
      };
      const auto sent = [&, self](const Status& status) {
        self->Record([&] {
          ++went;
          EXPECT_TRUE(status.ok()) << status.message();
        });
      };
      const Bytes& constant = *bytes;
      if (may_lose == 0) {
        self->rails.Post(
            other, id(other), All(*memory), false,
            [&](const Status& status, std::shared_ptr<const std::byte>) { received(status, nullptr, {}); });
        self->rails.Send({{other, id(self->self)}}, All(constant), sent);
      } else {
        self->rails.PostLossy(other, id(other), Spans<std::byte>(*memory), may_lose, received);
        const std::string name = "posted " + std::to_string(thread) + " " + std::to_string(i);
        self->rails.Notify(other, name);
        self->rails.Flush();
        {
          std::unique_lock<std::mutex> lock(self->mutex);
          self->changed.wait(lock, [&] { return self->posted.count(name) > 0; });
        }
        const std::vector<ConstSpan> spans = Spans<const std::byte>(constant);
        std::vector<bool> important(spans.size());
        for (size_t span = 0; span < spans.size(); span += 2) important[span] = true;
        self->rails.SendLossy({other, id(self->self)}, spans, important, may_lose, sent);
      }
      if (thread == 0) self->rails.Notify(other, std::to_string(i));
      self->rails.Flush();
      self->rails.Cancel(cancelled);
      lost.reset();
      std::unique_lock<std::mutex> lock(self->mutex);
      self->changed.wait(lock, [&] { return came > 0 && went > 0; });
      EXPECT_TRUE(came == 1 && went == 1 && Same(*memory, Without(Pattern(size, i), missing, may_lose)));
    }
  };
  std::vector<std::thread> threads;
  std::atomic<uint32_t> left{2 * kThreads};
  for (auto& each : processes) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, self = each.get(), thread] {
        run(self, thread);
        --left;
      });
    }
  }
  // Rails 1 and 2 fail at random, sometimes both at once. Rail 0 never fails, so neither process counts as failed.
  std::mt19937 random(7);
  while (left > 0) {
    for (uint32_t rail = random() % 2 ? 0 : 1; rail < kRails - 1; ++rail) {
      const bool is_whole = processes[0]->rails.lost().empty() && processes[1]->rails.lost().empty();
      const auto states = processes[random() % 2]->rails.states();
      if (is_whole && states[rail + 1].is_open) {
        shutdown(processes[random() % 2]->own[rail + 1].connection, SHUT_RDWR);
      }
    }
    for (const Rails::Lost& lost : processes[0]->rails.lost()) {
      for (const Rails::Lost& there : processes[1]->rails.lost()) {
        if (there.rail != lost.rail || there.fences != lost.fences) continue;
        const auto [one, other] = NewPaths(lost.rail);
        const std::array<UdpPath, 2> ends = {one, other};
        for (auto& each : processes) {
          const UdpPath& path = ends[each->self];
          bool is_given = false;
          each->rails.Restore({1 - each->self, lost.rail, lost.fences}, [&] {
            is_given = true;
            close(each->own[lost.rail].connection);
            const OwnRail& there = processes[1 - each->self]->own[lost.rail];
            return each->own[lost.rail].Connect(1 - each->self, path, there, static_cast<uint8_t>(lost.fences));
          });
          if (is_given) continue;
          close(path.connection);
          close(path.sockets[0].socket);
        }
      }
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& each : processes) {
    std::unique_lock<std::mutex> lock(each->mutex);
    each->changed.wait(lock, [&] { return each->notices.size() >= kMessages; });
    for (uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(each->notices[i], std::to_string(i));
  }
  for (auto& each : processes) each->leaves = true;
  for (auto& each : processes) {
    for (OwnRail& rail : each->own) rail.Leave();
  }
  for (auto& each : processes) {
    each->rails.Stop();
    for (const OwnRail& rail : each->own) close(rail.connection);
  }
}

INSTANTIATE_TEST_SUITE_P(OfTheseKinds, SocketRailsTest,
                         testing::Values(Case{{Kind::kTcp, Kind::kTcp, Kind::kTcp}, 0},
                                         Case{{Kind::kUdp, Kind::kUdp, Kind::kUdp}, 0},
                                         Case{{Kind::kUdp, Kind::kUdp, Kind::kUdp}, 0.03},
                                         Case{{Kind::kTcp, Kind::kUdp, Kind::kUdp}, 0.03},
                                         Case{{Kind::kTcp, Kind::kFabric, Kind::kFabric}, 0},
                                         Case{{Kind::kFabric, Kind::kUdp, Kind::kFabric}, 0.03}));

}  // namespace
}  // namespace jaxcomm
