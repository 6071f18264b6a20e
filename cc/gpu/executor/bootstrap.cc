#include "cc/gpu/executor/bootstrap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "cc/base/shared_file.h"
#include "cc/base/text.h"

namespace jaxcomm::fused {
namespace {

// Files that somebody may still come to. What is left of them when this process ends is removed.
class OpenFiles {
 public:
  static OpenFiles& All() {
    static OpenFiles* all = [] {
      std::atexit([] { All().RemoveAll(); });
      return std::make_unique<OpenFiles>().release();  // threads may still connect when static destructors run
    }();
    return *all;
  }

  void Add(const std::string& path) {
    std::lock_guard<std::mutex> lock(mutex_);
    paths_.insert(path);
  }
  void Remove(const std::string& path) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (paths_.erase(path) > 0) unlink(path.c_str());
  }

 private:
  void RemoveAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& path : paths_) unlink(path.c_str());
    paths_.clear();
  }

  std::mutex mutex_;
  std::set<std::string> paths_;
};

}  // namespace

Result<std::unique_ptr<Bootstrap>> Bootstrap::Open(const std::string& name, const Slots& slots) {
  const std::string path = "/dev/shm/jaxcomm-" + name;
  const Result<void*> memory = MapSharedFile(path, sizeof(Shared));
  if (!memory.ok()) return memory.status();
  OpenFiles::All().Add(path);
  return std::unique_ptr<Bootstrap>(new Bootstrap(path, static_cast<Shared*>(memory.value()), slots));
}

Bootstrap::Bootstrap(std::string path, Shared* shared, const Slots& slots)
    : path_(std::move(path)), shared_(shared), num_ranks_(slots.of_rank.size()) {
  for (const Slot& slot : slots.all) {
    auto member = std::find_if(members_.begin(), members_.end(),
                               [&slot](const Member& other) { return other.process == slot.process; });
    if (member == members_.end()) member = members_.insert(member, {slot.process, {}});
    if (slot.process == slots.process) me_ = static_cast<size_t>(member - members_.begin());
    for (uint32_t rank = 0; rank < slot.num_ranks; ++rank) member->ranks.push_back(slot.first_rank + rank);
  }
}

Bootstrap::~Bootstrap() { munmap(shared_, sizeof(Shared)); }

Status Bootstrap::Reach(Stage stage, const Status& mine, Timeout timeout) {
  const auto start = std::chrono::steady_clock::now();
  // First, or all would seem to have confirmed.
  if (!mine.ok()) Fail(Status(mine.code(), "process " + std::to_string(members_[me_].process) + ": " + mine.message()));
  shared_->parties[me_].stage = stage;
  // Nobody opens the file any more.
  if (AllReached(Stage::kPublished)) OpenFiles::All().Remove(path_);
  for (;;) {
    const uint32_t outcome = shared_->outcome;
    if (outcome >= Shared::kFirstFailure) {
      const auto& failed = shared_->parties[outcome - Shared::kFirstFailure];
      return Status(failed.code, failed.reason);
    }
    if (outcome == Shared::kAllConfirmed) return Status();
    const auto waited = std::chrono::steady_clock::now() - start;
    if (AllReached(stage)) {
      if (stage == Stage::kPublished) break;
      uint32_t open = Shared::kOpen;
      shared_->outcome.compare_exchange_strong(open, Shared::kAllConfirmed);
    } else if (waited > timeout) {
      Fail(Overdue(stage, waited));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  OpenFiles::All().Remove(path_);
  return Status();
}

// Unless something else has been decided.
void Bootstrap::Fail(const Status& status) {
  Shared::Party& me = shared_->parties[me_];
  me.code = status.code();
  std::snprintf(me.reason, sizeof(me.reason), "%s", status.message().c_str());
  uint32_t open = Shared::kOpen;
  shared_->outcome.compare_exchange_strong(open, Shared::kFirstFailure + static_cast<uint32_t>(me_));
}

Status Bootstrap::Overdue(Stage stage, Timeout waited) const {
  std::vector<uint32_t> processes, ranks;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (shared_->parties[i].stage >= stage) continue;
    processes.push_back(members_[i].process);
    ranks.insert(ranks.end(), members_[i].ranks.begin(), members_[i].ranks.end());
  }
  const char* const step = stage == Stage::kPublished ? " come to share memory" : " opened the others' memory";
  return Status(Code::kDeadlineExceeded,
                (ranks.size() > 1 ? "ranks " : "rank ") + JoinRanks(ranks) + " of " + std::to_string(num_ranks_) +
                    (processes.size() > 1 ? " (processes " : " (process ") + JoinRanks(processes) +
                    (ranks.size() > 1 ? ") have not" : ") has not") + step + " after " + FormatSeconds(waited) +
                    ".\n  Cure: look what is wrong there. All processes must run the same steps and see the same "
                    "/dev/shm; where one compiles for longer, raise deadline_s.");
}

bool Bootstrap::AllReached(Stage stage) const {
  return std::all_of(shared_->parties, shared_->parties + members_.size(),
                     [stage](const Shared::Party& party) { return party.stage >= stage; });
}

void Bootstrap::Close() { shared_->parties[me_].stage = Stage::kClosed; }

// Who comes after a failure uses nothing: it says that it has come before it looks for the outcome.
bool Bootstrap::AllClosed() const {
  const bool failed = Failed();
  for (size_t i = 0; i < members_.size(); ++i) {
    const Stage stage = shared_->parties[i].stage;
    if (i != me_ && stage != Stage::kClosed && !(failed && stage == Stage::kAbsent)) return false;
  }
  return true;
}

}  // namespace jaxcomm::fused
