#include "cc/executor/messages/notices.h"

#include "cc/base/little_endian.h"
#include "cc/base/text.h"

namespace jaxcomm {
namespace {

constexpr uint8_t kArrival = 1, kFailure = 2, kDecided = 3;
constexpr uint8_t kLeft = 1, kDied = 2;  // how a process ended; 0: no process has ended

std::string Begin(uint8_t which, const CallId& call) {
  std::string bytes;
  AppendNumber<uint8_t>(bytes, which);
  AppendNumber<uint64_t>(bytes, call.communicator);
  AppendNumber<uint32_t>(bytes, call.launch);
  AppendNumber<uint32_t>(bytes, call.site);
  AppendNumber<uint32_t>(bytes, call.iteration);
  return bytes;
}

}  // namespace

// The 128 bytes are for the other fields and the rails' header.
static_assert(Failure::kMaxText + Failure::Gone::kMaxText + Failure::kMaxRecord + 128 <= Transport::kMaxNotice);

std::string Encode(const Arrival& arrival) {
  std::string bytes = Begin(kArrival, arrival.call);
  AppendNumber<uint32_t>(bytes, arrival.rank);
  AppendNumber<uint32_t>(bytes, arrival.device);
  AppendNumber<uint64_t>(bytes, arrival.fingerprint);
  AppendNumber<uint8_t>(bytes, arrival.waits ? 1 : 0);
  bytes += CutText(arrival.text, Arrival::kMaxText);
  return bytes;
}

std::string Encode(const Decided& decided) {
  const ScheduleSelector::Decision& decision = decided.decision;
  std::string bytes = Begin(kDecided, decided.call);
  AppendNumber<uint32_t>(bytes, decision.schedule);
  AppendNumber<uint8_t>(bytes, decision.next ? 1 : 0);
  AppendNumber<uint32_t>(bytes, decision.next.value_or(0));
  AppendNumber<uint32_t>(bytes, decision.launches);
  AppendNumber<uint8_t>(bytes, static_cast<uint8_t>(decision.outcome));
  return bytes;
}

std::string Encode(const Failure& failure) {
  std::string bytes = Begin(kFailure, failure.call);
  AppendNumber<uint8_t>(bytes, !failure.gone ? 0 : failure.gone->has_left ? kLeft : kDied);
  AppendNumber<uint32_t>(bytes, failure.gone ? failure.gone->process : 0);
  const std::string_view end = failure.gone ? CutText(failure.gone->why, Failure::Gone::kMaxText) : "";
  AppendNumber(bytes, static_cast<uint16_t>(end.size()));
  AppendNumber(bytes, static_cast<uint8_t>(failure.why.code()));
  AppendNumber<uint64_t>(bytes, failure.step);
  const std::string_view text = CutText(failure.why.message(), Failure::kMaxText);
  AppendNumber(bytes, static_cast<uint16_t>(text.size()));
  bytes += end;
  bytes += text;
  if (failure.why.record().size() <= Failure::kMaxRecord) bytes += failure.why.record();
  return bytes;
}

std::optional<Notice> DecodeNotice(std::string_view bytes) {
  NumberReader in(bytes);
  const auto which = in.Get<uint8_t>();
  const CallId call{in.Get<uint64_t>(), in.Get<uint32_t>(), in.Get<uint32_t>(), in.Get<uint32_t>()};
  if (which == kArrival) {
    Arrival arrival{call, in.Get<uint32_t>(), in.Get<uint32_t>(), in.Get<uint64_t>(), ""};
    const auto waits = in.Get<uint8_t>();
    if (!in.ok() || in.rest().size() > Arrival::kMaxText || waits > 1) return std::nullopt;
    arrival.waits = waits == 1;
    arrival.text = in.rest();
    return arrival;
  }
  if (which == kDecided) {
    Decided decided{call, {in.Get<uint32_t>()}};
    const auto has_next = in.Get<uint8_t>();
    const auto next = in.Get<uint32_t>();
    decided.decision.launches = in.Get<uint32_t>();
    const auto outcome = in.Get<uint8_t>();
    if (!in.ok() || !in.rest().empty() || has_next > 1 || (has_next == 0 && next != 0) ||
        outcome > static_cast<uint8_t>(Trial::Outcome::kDropped))
      return std::nullopt;
    if (has_next == 1) decided.decision.next = next;
    decided.decision.outcome = static_cast<Trial::Outcome>(outcome);
    return decided;
  }
  if (which == kFailure) {
    const auto end = in.Get<uint8_t>();
    const auto process = in.Get<uint32_t>();
    const size_t end_text = in.Get<uint16_t>();
    const auto code = in.Get<uint8_t>();
    const auto step = in.Get<uint64_t>();
    const size_t text = in.Get<uint16_t>();
    std::string_view rest = in.rest();
    const bool is_error = code > static_cast<uint8_t>(Code::kOk) && code <= static_cast<uint8_t>(Code::kInternal);
    if (!in.ok() || !is_error || end > kDied || text > Failure::kMaxText) return std::nullopt;
    if (end == 0 && (process != 0 || end_text != 0)) return std::nullopt;
    if (end_text > Failure::Gone::kMaxText || end_text > rest.size()) return std::nullopt;
    const std::string end_why(rest.substr(0, end_text));
    rest.remove_prefix(end_text);
    if (text > rest.size() || rest.size() - text > Failure::kMaxRecord) return std::nullopt;
    const Status why(static_cast<Code>(code), std::string(rest.substr(0, text)), std::string(rest.substr(text)));
    Failure failure{call, why, step};
    if (end != 0) failure.gone = {process, end == kLeft, end_why};
    return failure;
  }
  return std::nullopt;
}

}  // namespace jaxcomm
