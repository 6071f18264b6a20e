#include "cc/executor/local/local_group_site.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cc/base/error_texts.h"

namespace jaxcomm {

LocalGroupSite::LocalGroupSite(const std::string& name, const std::string& axes,
                               const std::vector<std::shared_ptr<const Program>>& programs)
    : name_(name), axes_(axes), left_(programs.size() + 1) {
  for (const auto& program : programs) {
    sites_.push_back(std::make_shared<LocalSite>(name, axes, "groups", Kind::kAllReduce, Reduction::kSum, program));
  }
}

Status LocalGroupSite::SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) {
  std::call_once(once_, [&] {
    int64_t bytes = 0;
    for (const Leaf& leaf : leaves) bytes += leaf.bytes;
    stats_ = stats.Site({name_, axes_, "groups", ranks(), bytes});
    for (const auto& site : sites_) {
      status_ = site->SetLeaves(leaves, places_);
      if (!status_.ok()) return;
    }
  });
  return status_;
}

void LocalGroupSite::Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) {
  const GroupNumbers row = RowOf(buffers, ranks());
  const auto [round, mismatch, agreed] = Join(run, rank, row);
  const auto leave = [self = shared_from_this(), round = round, rank, done = std::move(done)](const Status& status) {
    self->Leave(*round, rank, status);
    done(status);
  };
  if (!mismatch.ok()) {
    // The ranks that arrived earlier agree on round->row, and each of them waits in its group's call. No further rank
    // joins these calls, so the calls that lack a rank fail. A call whose ranks have all arrived continues.
    for (int32_t group = 0; !agreed.empty() && group < static_cast<int32_t>(ranks()); ++group) {
      const std::vector<uint32_t> members = MembersOf(round->row, group);
      const auto coming =
          std::count_if(members.begin(), members.end(), [&before = agreed](uint32_t each) { return before[each]; });
      if (coming == 0 || coming == static_cast<int64_t>(members.size())) continue;
      executors.local().Abort(KeyOf(run, *round, group), SiteOf(members.size()), mismatch,
                              static_cast<uint32_t>(coming));
    }
    leave(mismatch);
    return;
  }
  const LocalExecutor::Key key = KeyOf(run, *round, row[rank]);
  const std::vector<uint32_t>& members = *key.names;
  if (members.size() == 1) {
    leave(Status());
    return;
  }
  const auto place = std::lower_bound(members.begin(), members.end(), rank) - members.begin();
  executors.local().Arrive(key, SiteOf(members.size()), static_cast<uint32_t>(place), std::move(buffers), leave);
}

LocalGroupSite::Joined LocalGroupSite::Join(int64_t run, uint32_t rank, const GroupNumbers& row) {
  const Clock::time_point now = Clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  auto& open = rounds_[run];
  auto at = std::find_if(open.begin(), open.end(), [rank](const auto& round) { return !round->here[rank]; });
  if (at == open.end()) {
    auto fresh = std::make_shared<Round>();
    fresh->run = run;
    fresh->number = number_++;
    fresh->row = row;
    fresh->here.resize(ranks());
    fresh->came.resize(ranks());
    fresh->left.resize(ranks());
    fresh->own.resize(ranks());
    at = open.insert(open.end(), std::move(fresh));
  }
  std::shared_ptr<Round> round = *at;
  std::vector<bool> agreed;
  if (round->mismatch.ok()) {
    round->mismatch = Check(*round, rank, row);
    if (!round->mismatch.ok()) agreed = round->here;
  }
  round->here[rank] = true;
  round->came[rank] = now;
  round->own[rank] = left_[rank] == Clock::time_point() ? -1 : Seconds(now - left_[rank]);
  // Each rank joins the rounds of a run in order, so the first open round is the first to be complete.
  if (++round->num_here == ranks()) open.pop_front();
  if (open.empty()) rounds_.erase(run);
  return {round, round->mismatch, agreed};
}

Status LocalGroupSite::Check(const Round& round, uint32_t rank, const GroupNumbers& row) const {
  const CallName call{name_, axes_, "groups"};
  if (Status status = CheckRow(call.Text(), rank, row); !status.ok()) return status;
  if (row == round.row) return Status();
  const auto other = std::find(round.here.begin(), round.here.end(), true) - round.here.begin();
  return Mismatch{call, rank, TextOf(row), static_cast<uint32_t>(other), TextOf(round.row)}.status();
}

LocalExecutor::Key LocalGroupSite::KeyOf(int64_t run, const Round& round, int32_t group) const {
  return {run, round.number * ranks() + group,
          std::make_shared<const std::vector<uint32_t>>(MembersOf(round.row, group))};
}

void LocalGroupSite::Leave(Round& round, uint32_t rank, const Status& status) {
  const Clock::time_point now = Clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  round.left[rank] = left_[rank] = now;
  if (!status.ok() && !round.failed) {
    round.failed = true;
    if (const std::optional<int64_t> run = failed_.Add(round.run).dropped) {
      const auto oldest = rounds_.find(*run);
      if (oldest != rounds_.end() && oldest->second.front()->failed) rounds_.erase(oldest);
    }
  }
  if (++round.num_left < ranks()) return;
  if (round.failed) {
    stats_->RecordFailure();
    const Clock::time_point first = *std::min_element(round.came.begin(), round.came.end());
    stats_->KeepFailure({{0, round.number + 1, first}, {}, {}, status.message(), now});
  } else {
    Record(round);
  }
}

void LocalGroupSite::Record(const Round& round) const {
  CallRecord record;
  const Clock::time_point start = *std::min_element(round.came.begin(), round.came.end());
  record.call = {0, round.number + 1, start};
  for (const Clock::time_point came : round.came) record.arrivals.push_back(Seconds(came - start));
  record.waits.resize(ranks());
  for (int32_t group = 0; group < static_cast<int32_t>(ranks()); ++group) {
    const std::vector<uint32_t> members = MembersOf(round.row, group);
    if (members.empty()) continue;
    const auto by_arrival = [&round](uint32_t a, uint32_t b) { return round.came[a] < round.came[b]; };
    const auto last = std::max_element(members.begin(), members.end(), by_arrival);
    for (const uint32_t rank : members) {
      record.waits[rank] = Seconds(round.came[*last] - round.came[rank]);
      record.after_arrival = std::max(record.after_arrival, Seconds(round.left[rank] - round.came[*last]));
    }
    if (members.size() > 1) record.last.push_back(*last);
  }
  const bool known = std::all_of(round.own.begin(), round.own.end(), [](double seconds) { return seconds >= 0; });
  if (known) record.own = round.own;
  stats_->Record(std::move(record));
}

size_t LocalGroupSite::open_rounds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t open = 0;
  for (const auto& [run, rounds] : rounds_) open += rounds.size();
  return open;
}

void LocalGroupSite::Forget(Executors& executors) const {
  for (const auto& site : sites_) executors.local().Forget(site.get());
}

}  // namespace jaxcomm
