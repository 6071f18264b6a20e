#include "cc/executor/messages/operand_transfer.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "cc/base/finally.h"
#include "cc/executor/messages/call_record.h"
#include "cc/executor/messages/result_pages.h"

namespace jaxcomm {

bool OperandTransfer::Join(Transport& transport, const CallMatcher& calls) try {
  const MessageSite& site = *arriving_.site;
  const std::vector<uint32_t>& processes = site.exchanging().processes;
  const std::vector<uint32_t>& group = site.ranks().GroupOf(arriving_.rank);
  is_sender_ = group[0] == arriving_.rank;
  transport_ = &transport;
  transfers_ = transport.transfers(processes[is_sender_ ? 1 : 0]);
  if (transfers_ == nullptr) return false;
  if (!is_sender_) {
    AdviseHugePages(site, arriving_.rank, arriving_.buffers);
    return true;
  }
  // If anything is known of the call, the receiver does not wait for an offer any more, or the call has failed.
  if (!calls.IsUnknown(site, arriving_.id)) return false;
  offered_ = transfers_->Offer(Part(), arriving_.buffers.operands[0], site.layout().payload());
  return offered_ != nullptr;
} catch (const std::bad_alloc&) {
  return false;
}

bool OperandTransfer::Finish(const CallMatcher& calls, const WaitLimits& limits) {
  if (is_sender_) return std::exchange(offered_, nullptr)->Finish(limits);
  bool expects = false;  // whether the transport must deliver notices at once
  const Finally end([&] {});
  const auto will_not_come = [&] {
    if (!std::exchange(expects, true)) {
      transport_->Expect();
      transport_->Flush();  // the sender may wait for a notice of this thread
    }
    return !calls.IsUnknown(*arriving_.site, arriving_.id);
  };
  sender_at_ =
      transfers_->Take(Part(), arriving_.buffers.results[0], arriving_.site->layout().payload(), limits, will_not_come);
  return sender_at_.has_value();
}

std::vector<PeerArrival> OperandTransfer::Record(CallMatcher& calls) const {
  const MessageSite& site = *arriving_.site;
  if (is_sender_) {
    site.stats().RecordSent();
    return calls.AddSent(arriving_.site, arriving_.id, arriving_.rank, arriving_.at);
  }
  const int64_t number = calls.AddEnded(site, arriving_.id, site.ranks().GroupOf(arriving_.rank), arriving_.at);
  // The clocks of a host's containers may differ, so the sender's time is limited to the last day.
  const Clock::time_point now = Clock::now();
  const Clock::time_point sent_at = std::clamp(*sender_at_, now - std::chrono::hours(24), now);
  site.stats().Record(RecordOf({sent_at, arriving_.at}, arriving_.id, number));
  return {};
}

}  // namespace jaxcomm
