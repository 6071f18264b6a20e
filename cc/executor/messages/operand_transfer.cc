#include "cc/executor/messages/operand_transfer.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "cc/executor/messages/call_record.h"
#include "cc/executor/messages/result_pages.h"

namespace jaxcomm {

bool OperandTransfer::Join(Transport& transport, const CallMatcher& calls) try {
  const MessageSite& site = *arriving_.site;
  const std::vector<uint32_t>& processes = site.exchanging().processes;
  if (processes.empty()) return false;
  const std::vector<uint32_t>& group = site.ranks().GroupOf(arriving_.rank);
  is_sender_ = group[0] == arriving_.rank;
  transfers_ = transport.transfers(processes[is_sender_ ? 1 : 0]);
  if (transfers_ == nullptr) return false;
  if (!is_sender_) {
    AdviseHugePages(site, arriving_.rank, arriving_.buffers);
    return arriving_.refused.ok();
  }
  // If anything is known of the call, the receiver does not wait for an offer any more, or the call has failed.
  if (arriving_.refused.ok() && calls.IsUnknown(site, arriving_.id)) {
    offered_ = transfers_->Offer(Part(), arriving_.buffers.operands[0], site.layout().payload());
    return offered_ != nullptr;
  }
  transfers_->Decline(Part());
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

bool OperandTransfer::Finish(CallMatcher& calls, const ExchangeLimits& limits) {
  const MessageSite& site = *arriving_.site;
  if (is_sender_) {
    const bool is_sent = offered_->Finish(limits);
    offered_ = nullptr;
    if (!is_sent) return false;
    calls.AddSent(arriving_.site, arriving_.id, arriving_.rank, arriving_.at);
    site.stats().RecordSent(Seconds(Clock::now() - arriving_.at));
    return true;
  }
  const auto sender_at = transfers_->Take(Part(), arriving_.buffers.results[0], site.layout().payload(), limits,
                                          [this, &calls] { return !calls.IsUnknown(*arriving_.site, arriving_.id); });
  if (!sender_at) return false;
  const int64_t number = calls.AddEnded(site, arriving_.id, site.ranks().GroupOf(arriving_.rank), arriving_.at);
  // The clocks of a host's containers may differ, so the sender's time is limited to the past.
  const Clock::time_point sent_at = std::min(*sender_at, Clock::now());
  site.stats().Record(RecordOf({sent_at, arriving_.at}, arriving_.id, number));
  return true;
}

}  // namespace jaxcomm
