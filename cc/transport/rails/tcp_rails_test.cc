// Rails over real connections, that are reset and restored while many threads send.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/transport/rails/rails.h"
#include "cc/transport/tcp/testing/node.h"
#include "gtest/gtest.h"

// Sanitizers look at what sendmsg read after it has returned: the other side may have said by then that it has the
// message, and its memory may be used again.
extern "C" const char* __asan_default_options() { return "intercept_send=0"; }
extern "C" const char* __tsan_default_options() { return "intercept_send=0"; }

namespace jaxcomm {
namespace {

constexpr uint32_t kRails = 3, kThreads = 3, kMessages = 30;

class Process : public Transport::Events {
 public:
  explicit Process(uint32_t self) : rails(2, kRails, this), self(self) {
    std::vector<Transport*> transports;
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      tcp.push_back(std::move(TcpTransport::Create(self, rails.events(rail)).value()));
      transports.push_back(tcp.back().get());
    }
    rails.Connect(std::move(transports));
    EXPECT_TRUE(rails.AddProcess(1 - self, {{0, {342, 341, 341}}}, {0, 1, 2}).ok());
  }
  void OnNotice(uint32_t, std::string_view notice) override {
    Record([&] { notices.emplace_back(notice); });
  }
  void OnPeerGone(uint32_t, const Status& why) override { EXPECT_TRUE(leaves) << why.message(); }
  // Keeps a descriptor of its own, as the transport closes the other when it likes.
  Status Connect(uint32_t rail, int socket) {
    sockets[rail] = dup(socket);
    return tcp[rail]->AddPeer(1 - self, socket);
  }
  void Record(const std::function<void()>& change) {
    std::lock_guard<std::mutex> lock(mutex);
    change();
    changed.notify_all();
  }

  Rails rails;
  const uint32_t self;
  std::vector<std::unique_ptr<TcpTransport>> tcp;
  std::array<int, kRails> sockets;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> notices;
  std::atomic<bool> leaves{false};
};

TEST(TcpRailsTest, EveryMessageComesOnceWhileRailsAreResetAndRestored) {
  std::array<std::unique_ptr<Process>, 2> processes = {std::make_unique<Process>(0), std::make_unique<Process>(1)};
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    std::tie(processes[0]->sockets[rail], processes[1]->sockets[rail]) = Connection();
    for (auto& it : processes) EXPECT_TRUE(it->Connect(rail, it->sockets[rail]).ok());
  }
  for (auto& it : processes) EXPECT_TRUE(it->rails.Start().ok());

  const auto run = [&](Process* self, uint32_t thread) {
    std::mt19937 random(10 * self->self + thread);
    for (uint32_t i = 0; i < kMessages; ++i) {
      const uint32_t other = 1 - self->self;
      const size_t size = i % 2 ? 200 : 100000;
      // A call of its own, which each side posts and sends.
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
      self->rails.Post(other, id(other), All(*memory), false,
                       [&, self](const Status& status, std::shared_ptr<const std::byte>) {
                         self->Record([&] {
                           ++came;
                           EXPECT_TRUE(status.ok()) << status.message();
                         });
                       });
      const Bytes& constant = *bytes;
      self->rails.Send({{other, id(self->self)}}, All(constant), [&, self](const Status& status) {
        self->Record([&] {
          ++went;
          EXPECT_TRUE(status.ok()) << status.message();
        });
      });
      if (thread == 0) self->rails.Notify(other, std::to_string(i));
      self->rails.Flush();
      self->rails.Cancel(cancelled);
      lost.reset();
      std::unique_lock<std::mutex> lock(self->mutex);
      self->changed.wait(lock, [&] { return came > 0 && went > 0; });
      EXPECT_TRUE(came == 1 && went == 1 && Same(*memory, Pattern(size, i)));
    }
  };
  std::vector<std::thread> threads;
  std::atomic<uint32_t> left{2 * kThreads};
  for (auto& it : processes) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, self = it.get(), thread] {
        run(self, thread);
        --left;
      });
    }
  }
  // Rails 1 and 2 fail at random, both at once too; rail 0 is there so that no process is gone.
  std::mt19937 random(7);
  while (left > 0) {
    for (uint32_t rail = random() % 2 ? 0 : 1; rail < kRails - 1; ++rail) {
      const bool is_whole = processes[0]->rails.lost().empty() && processes[1]->rails.lost().empty();
      const auto states = processes[random() % 2]->rails.states();
      if (is_whole && states[rail + 1].is_open) {
        shutdown(processes[random() % 2]->sockets[rail + 1], SHUT_RDWR);
      }
    }
    for (const Rails::Lost& lost : processes[0]->rails.lost()) {
      for (const Rails::Lost& there : processes[1]->rails.lost()) {
        if (there.rail != lost.rail || there.fences != lost.fences) continue;
        const std::pair<int, int> sockets = Connection();
        const std::array<int, 2> ends = {sockets.first, sockets.second};
        for (auto& it : processes) {
          bool is_given = false;
          it->rails.Restore({1 - it->self, lost.rail, lost.fences}, [&] {
            is_given = true;
            close(it->sockets[lost.rail]);
            return it->Connect(lost.rail, ends[it->self]);
          });
          if (!is_given) close(ends[it->self]);
        }
      }
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& it : processes) {
    std::unique_lock<std::mutex> lock(it->mutex);
    it->changed.wait(lock, [&] { return it->notices.size() >= kMessages; });
    for (uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(it->notices[i], std::to_string(i));
  }
  for (auto& it : processes) it->leaves = true;
  for (auto& it : processes) {
    for (auto& tcp : it->tcp) tcp->Leave();
  }
  for (auto& it : processes) {
    it->rails.Stop();
    for (const int socket : it->sockets) close(socket);
  }
}

}  // namespace
}  // namespace jaxcomm
