#include "cc/executor/messages/exchange_operands.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "cc/base/float_mode.h"

namespace jaxcomm {
namespace {

// The time that a rank waits for the other ranks before its call continues with messages.
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

bool ExchangeOperands(Transport& transport, CallMatcher& calls, const ArrivingRank& arriving, bool may_wait,
                      bool yields) {
  const MessageSite& site = *arriving.site;
  if (!arriving.refused.ok() || site.exchanging().empty() || !calls.IsUnknown(site, arriving.id)) return false;
  const std::vector<uint32_t>& ranks = site.ranks().GroupOf(arriving.rank);
  bool ended = false;
  try {
    const auto rank = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), arriving.rank) - ranks.begin());
    Exchange mine{arriving.id, site.exchanging(), rank, site.fingerprint(), {}, arriving.at};
    for (size_t leaf = 0; leaf < arriving.buffers.operands.size(); ++leaf) {
      const int64_t bytes = site.layout().leaves()[leaf].bytes;
      mine.spans.push_back({arriving.buffers.operands[leaf], bytes, site.layout().Start(leaf)});
    }
    std::vector<Clock::time_point> arrivals(ranks.size());
    std::vector<const std::byte*> sources(ranks.size());
    // Adds the operands in the order of ranks, as in a flat sum with messages.
    const auto take = [&](const std::vector<Exchanged>& operands) {
      const XlaFloatMode mode;
      for (size_t leaf = 0; leaf < arriving.buffers.results.size(); ++leaf) {
        for (size_t i = 0; i < sources.size(); ++i) sources[i] = operands[i].bytes + site.layout().Start(leaf);
        site.leaves().reduces()[leaf](sources.data(), sources.size(), &arriving.buffers.results[leaf], 1, 1,
                                      static_cast<size_t>(site.layout().leaves()[leaf].bytes));
      }
      for (size_t i = 0; i < arrivals.size(); ++i) arrivals[i] = operands[i].at;
    };
    const auto limit = may_wait ? kWait : std::chrono::milliseconds(0);
    ended = transport.TryExchange(mine, limit, yields, take);
    if (!ended) return false;
    calls.AddEnded(site, arriving.id, ranks, arriving.at);
    // The clocks of a host's containers may differ, so the other ranks' times are kept within possible bounds.
    const Clock::time_point now = Clock::now();
    for (Clock::time_point& at : arrivals) at = std::clamp(at, arriving.at - kWait, now);
    site.stats().Record(RecordOf(arrivals));
  } catch (const std::bad_alloc&) {
    // If the sum is complete, only its statistics are missing.
  }
  return ended;
}

}  // namespace jaxcomm
