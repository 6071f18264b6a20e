// Polls for an event that other processes of the host cause, as YieldUntil does (yielding.h). Does not end its polling
// because of a yield to a thread of one of these processes, since the event cannot come without them.
//
//   YieldToPeers(mine, {other}, [&] { return ready(); });   // the memory files of this process and of the others
//   if (!ready()) ...                                        // sleep until the event
//   mine.header().waits_since = 0;                           // when the thread no longer waits
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "cc/base/yielding.h"
#include "cc/transport/shm/memory_file.h"

namespace jaxcomm::shm {

// Whether the process had this thread's processor until about the time `end`: it now either runs, or has waited since
// shortly before `end`.
inline bool HadProcessor(const FileHeader& process, std::chrono::steady_clock::time_point end) {
  const std::chrono::nanoseconds since(process.waits_since.load());
  const bool has_run = since == since.zero() || since >= (end - kSlowYield).time_since_epoch();
  return has_run && process.processor == sched_getcpu();
}

template <typename Files, typename Ready>
void YieldToPeers(const MemoryFile& mine, const Files& peers, const Ready& ready) {
  using Clock = std::chrono::steady_clock;
  if (ready()) return;
  mine.header().waits_since = Clock::now().time_since_epoch().count();
  std::atomic<int64_t>& rest = mine.writable().rests_until;
  const bool has_begun_rest = YieldUntil(ready, rest, [&peers](Clock::time_point end) {
    return std::any_of(peers.begin(), peers.end(),
                       [end](const MemoryFile* peer) { return HadProcessor(peer->header(), end); });
  });
  if (!has_begun_rest) return;
  for (const MemoryFile* const peer : peers) peer->writable().rests_until = rest.load();
}

}  // namespace jaxcomm::shm
