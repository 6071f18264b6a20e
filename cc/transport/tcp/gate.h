// Lets system calls read and store messages while no lock is held. A thread that frees the messages' memory waits until
// no such system call runs.
//
//   gate.Enter(lock); lock.unlock(); recvmsg(...); lock.lock(); gate.Leave();   // in any thread
//   gate.Close(lock); ...; gate.Open();   // while the lock is held between Close and Open, no thread is inside
//
// From Enter to Leave a thread is inside the gate, and must not wait for another thread. Enter and Close may release
// the lock for a while.
#pragma once

#include <condition_variable>
#include <mutex>

namespace jaxcomm {

class Gate {
 public:
  void Enter(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] { return closing_ == 0; });
    ++inside_;
  }
  void Leave() {
    if (--inside_ == 0 && closing_ > 0) changed_.notify_all();
  }
  void Close(std::unique_lock<std::mutex>& lock) {
    ++closing_;
    changed_.wait(lock, [this] { return inside_ == 0; });
  }
  void Open() {
    if (--closing_ == 0) changed_.notify_all();
  }

 private:
  std::condition_variable changed_;
  int inside_ = 0, closing_ = 0;
};

}  // namespace jaxcomm
