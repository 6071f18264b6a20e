// Exchanges the operands of small calls between the ranks of a host that come together, without messages.
#include <algorithm>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "cc/base/float_mode.h"
#include "cc/executor/message_executor.h"

namespace jaxcomm {
namespace {

// A rank waits so long for the others before its call goes on by messages.
constexpr std::chrono::milliseconds kWait{1};

CallRecord RecordOf(const std::vector<Clock::time_point>& arrivals) {
  const auto [first, last] = std::minmax_element(arrivals.begin(), arrivals.end());
  CallRecord record;
  record.arrivals.reserve(arrivals.size());
  record.waits.reserve(arrivals.size());
  for (const Clock::time_point at : arrivals) {
    record.arrivals.push_back(Seconds(at - *first));
    record.waits.push_back(Seconds(*last - at));
  }
  record.last = {static_cast<uint32_t>(last - arrivals.begin())};
  record.after_arrival = Seconds(Clock::now() - *last);
  return record;
}

}  // namespace

void MessageSite::FindExchanging() {
  exchanging_.clear();
  const Local& local = locals_[0];
  const bool is_simple = kind_ == Kind::kAllReduce && !loss_ && !selector_ && layout().extent() > 0 &&
                         layout().extent() <= Transport::kMaxExchanged;
  if (!is_simple || !local.list || !local.list->IsFlatSum() || between_hosts_[ranks_[local.rank].group]) return;
  std::vector<uint32_t> processes;
  for (const uint32_t rank : GroupOf(local.rank)) processes.push_back(ranks_[rank].process);
  for (const uint32_t process : processes) {
    const auto is_of = [process](const Rank& rank) { return rank.process == process; };
    if (std::count_if(ranks_.begin(), ranks_.end(), is_of) > 1) return;
  }
  exchanging_ = std::move(processes);
}

// Whether the call has ended so. Otherwise it goes on by messages, for all of its ranks.
bool MessageExecutor::Exchange(const Arriving& arriving, bool may_wait) {
  const MessageSite& site = *arriving.site;
  if (!arriving.refused.ok() || !site.may_exchange() || !calls_.IsUnknown(site, arriving.id)) return false;
  const std::vector<uint32_t>& ranks = site.GroupOf(arriving.rank);
  bool ended = false;
  try {
    const auto rank = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), arriving.rank) - ranks.begin());
    jaxcomm::Exchange mine{arriving.id, site.exchanging(), rank, site.fingerprint(), {}, arriving.at};
    for (size_t leaf = 0; leaf < arriving.buffers.operands.size(); ++leaf) {
      const int64_t bytes = site.layout().leaves()[leaf].bytes;
      mine.spans.push_back({arriving.buffers.operands[leaf], bytes, site.layout().Start(leaf)});
    }
    std::vector<Clock::time_point> arrivals(ranks.size());
    std::vector<const std::byte*> sources(ranks.size());
    // Adds as the ranks of a flat sum do.
    const auto take = [&](const std::vector<Exchanged>& operands) {
      const XlaFloatMode mode;
      for (size_t leaf = 0; leaf < arriving.buffers.results.size(); ++leaf) {
        for (size_t i = 0; i < sources.size(); ++i) sources[i] = operands[i].bytes + site.layout().Start(leaf);
        site.reduces()[leaf](sources.data(), sources.size(), &arriving.buffers.results[leaf], 1, 1,
                             static_cast<size_t>(site.layout().leaves()[leaf].bytes));
      }
      for (size_t i = 0; i < arrivals.size(); ++i) arrivals[i] = operands[i].at;
    };
    const auto limit = may_wait ? kWait : std::chrono::milliseconds(0);
    ended = transport_.load()->TryExchange(mine, limit, yields_, take);
    if (!ended) return false;
    calls_.AddEnded(site, arriving.id, ranks, arriving.at);
    // Clocks may differ between containers of a host.
    const Clock::time_point now = Clock::now();
    for (Clock::time_point& at : arrivals) at = std::clamp(at, arriving.at - kWait, now);
    site.stats().Record(RecordOf(arrivals));
  } catch (const std::bad_alloc&) {
    // A sum that has ended is right without its statistics.
  }
  return ended;
}

}  // namespace jaxcomm
