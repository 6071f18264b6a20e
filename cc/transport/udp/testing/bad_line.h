// A line between two UDP sockets that loses, duplicates and reorders packets. A seed selects the affected packets.
//
//   BadLine line({/*seed=*/1, /*lost=*/0.1, /*doubled=*/0.05, /*late=*/0.1});
//   line.Between(a, b);   // sockets bound to loopback addresses
//
// The line runs until it is destroyed.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {

inline int LoopbackUdp() {
  const int made = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const int room = 4 << 20;
  setsockopt(made, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
  return made;
}

inline void ConnectUdp(int from, int to) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  EXPECT_EQ(getsockname(to, reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_EQ(connect(from, reinterpret_cast<sockaddr*>(&address), length), 0);
}

class BadLine {
 public:
  struct Faults {
    unsigned seed;
    double lost, doubled, late;  // shares of packets that are lost, duplicated or delivered later
  };

  explicit BadLine(const Faults& faults) : faults_(faults), random_(faults.seed), ends_{LoopbackUdp(), LoopbackUdp()} {}
  ~BadLine() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
    for (const int end : ends_) close(end);
  }

  void Between(int a, int b) {
    ConnectUdp(a, ends_[0]);
    ConnectUdp(b, ends_[1]);
    ConnectUdp(ends_[0], a);
    ConnectUdp(ends_[1], b);
    thread_ = std::thread([this] { Run(); });
  }

  std::atomic<int> lost{0};  // number of lost packets
  // By direction: index 0 is for packets to socket `a`, index 1 for packets to socket `b`. `is_cut`: whether the line
  // loses all packets. `packets`: number of packets so far, including the lost ones.
  std::array<std::atomic<bool>, 2> is_cut{};
  std::array<std::atomic<int>, 2> packets{};

 private:
  using Packet = std::vector<std::byte>;

  void Run() {
    std::array<std::vector<Packet>, 2> late;  // packets to deliver later, by destination
    Packet packet(65536);
    while (!stops_) {
      pollfd readable[] = {{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}};
      const bool any = poll(readable, 2, /*milliseconds=*/1) > 0;
      for (size_t from = 0; from < 2; ++from) {
        const size_t to = 1 - from;
        if (any && readable[from].revents) {
          const ssize_t size = recv(ends_[from], packet.data(), packet.size(), MSG_DONTWAIT);
          if (size >= 0) Pass(to, {packet.begin(), packet.begin() + size}, late[to]);
        }
        if (!late[to].empty() && (!any || Share() < 0.2)) {
          const size_t chosen = random_() % late[to].size();
          Send(to, late[to][chosen]);
          late[to].erase(late[to].begin() + static_cast<std::ptrdiff_t>(chosen));
        }
      }
    }
  }

  void Pass(size_t to, Packet packet, std::vector<Packet>& late) {
    ++packets[to];
    if (is_cut[to] || Share() < faults_.lost) {
      ++lost;
      return;
    }
    if (Share() < faults_.doubled) late.push_back(packet);
    if (Share() < faults_.late) {
      late.push_back(std::move(packet));
    } else {
      Send(to, packet);
    }
  }

  void Send(size_t to, const Packet& packet) { send(ends_[to], packet.data(), packet.size(), MSG_NOSIGNAL); }
  double Share() { return std::uniform_real_distribution<double>()(random_); }

  const Faults faults_;
  std::mt19937 random_;
  const std::array<int, 2> ends_;
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace jaxcomm
