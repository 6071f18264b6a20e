#include "cc/gpu/executor/rendezvous.h"

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
      return std::make_unique<OpenFiles>().release();  // threads may still meet when static destructors run
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

Result<std::unique_ptr<Rendezvous>> Rendezvous::Open(const std::string& name, const Places& places) {
  const std::string path = "/dev/shm/jaxcomm-" + name;
  const Result<void*> memory = MapSharedFile(path, sizeof(Shared));
  if (!memory.ok()) return memory.status();
  OpenFiles::All().Add(path);
  return std::unique_ptr<Rendezvous>(new Rendezvous(path, static_cast<Shared*>(memory.value()), places));
}

Rendezvous::Rendezvous(std::string path, Shared* shared, const Places& places)
    : path_(std::move(path)), shared_(shared), num_ranks_(places.of_rank.size()) {
  for (const Place& place : places.all) {
    auto member = std::find_if(members_.begin(), members_.end(),
                               [&place](const Member& other) { return other.process == place.process; });
    if (member == members_.end()) member = members_.insert(member, {place.process, {}});
    if (place.process == places.process) me_ = static_cast<size_t>(member - members_.begin());
    for (uint32_t rank = 0; rank < place.num_ranks; ++rank) member->ranks.push_back(place.first_rank + rank);
  }
}

Rendezvous::~Rendezvous() { munmap(shared_, sizeof(Shared)); }

Status Rendezvous::Reach(Stage stage, const Status& mine, Patience patience) {
  const auto start = std::chrono::steady_clock::now();
  // First, or all would seem to have settled.
  if (!mine.ok()) Fail(Status(mine.code(), "process " + std::to_string(members_[me_].process) + ": " + mine.message()));
  shared_->parties[me_].stage = stage;
  // Nobody opens the file any more.
  if (AllReached(Stage::kCame)) OpenFiles::All().Remove(path_);
  for (;;) {
    const uint32_t outcome = shared_->outcome;
    if (outcome >= Shared::kFirstFailure) {
      const auto& failed = shared_->parties[outcome - Shared::kFirstFailure];
      return Status(failed.code, failed.reason);
    }
    if (outcome == Shared::kAllSettled) return Status();
    const auto waited = std::chrono::steady_clock::now() - start;
    if (AllReached(stage)) {
      if (stage == Stage::kCame) break;
      uint32_t open = Shared::kOpen;
      shared_->outcome.compare_exchange_strong(open, Shared::kAllSettled);
    } else if (waited > patience) {
      Fail(Overdue(stage, waited));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  OpenFiles::All().Remove(path_);
  return Status();
}

// Unless something else has been decided.
void Rendezvous::Fail(const Status& status) {
  Shared::Party& me = shared_->parties[me_];
  me.code = status.code();
  std::snprintf(me.reason, sizeof(me.reason), "%s", status.message().c_str());
  uint32_t open = Shared::kOpen;
  shared_->outcome.compare_exchange_strong(open, Shared::kFirstFailure + static_cast<uint32_t>(me_));
}

Status Rendezvous::Overdue(Stage stage, Patience waited) const {
  std::vector<uint32_t> processes, ranks;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (shared_->parties[i].stage >= stage) continue;
    processes.push_back(members_[i].process);
    ranks.insert(ranks.end(), members_[i].ranks.begin(), members_[i].ranks.end());
  }
  const char* const what = stage == Stage::kCame ? " come to share memory" : " opened the others' memory";
  return Status(Code::kDeadlineExceeded,
                (ranks.size() > 1 ? "ranks " : "rank ") + JoinRanks(ranks) + " of " + std::to_string(num_ranks_) +
                    (processes.size() > 1 ? " (processes " : " (process ") + JoinRanks(processes) +
                    (ranks.size() > 1 ? ") have not" : ") has not") + what + " after " + FormatSeconds(waited) +
                    ".\n  Cure: look what is wrong there. All processes must run the same steps and see the same "
                    "/dev/shm; where one compiles for longer, raise deadline_s.");
}

bool Rendezvous::AllReached(Stage stage) const {
  return std::all_of(shared_->parties, shared_->parties + members_.size(),
                     [stage](const Shared::Party& party) { return party.stage >= stage; });
}

void Rendezvous::Leave() { shared_->parties[me_].stage = Stage::kLeft; }

// Who comes to a meeting that has failed uses nothing: it says that it has come before it looks for the outcome.
bool Rendezvous::Deserted() const {
  const bool failed = Failed();
  for (size_t i = 0; i < members_.size(); ++i) {
    const Stage stage = shared_->parties[i].stage;
    if (i != me_ && stage != Stage::kLeft && !(failed && stage == Stage::kAbsent)) return false;
  }
  return true;
}

}  // namespace jaxcomm::fused
