#include "cc/transport/rails/rail_history.h"

#include <utility>

#include "cc/base/json.h"

namespace jaxcomm {

void RailHistory::Span::Add(const Span& later) {
  bytes += later.bytes;
  rates += later.rates;
  measured += later.measured;
  if (later.share) share = later.share;
}

void RailHistory::Carry(int64_t bytes, Clock::time_point now) { spans_.At(now).bytes += bytes; }

void RailHistory::Measure(double rate, Clock::time_point now) {
  Span& span = spans_.At(now);
  span.rates += rate;
  ++span.measured;
}

void RailHistory::Divide(uint32_t share, Clock::time_point now) { spans_.At(now).share = share; }

void RailHistory::Change(bool is_open, const std::string& why, Clock::time_point now) {
  changes_.push_back({now, is_open, why});
  if (changes_.size() > kMostChanges) changes_.pop_front();
}

void RailHistory::WriteJson(std::ostream& out) const {
  const char* comma = "";
  out << "\"spans\":[";
  for (const auto& span : spans_.spans()) {
    out << std::exchange(comma, ",") << "{\"at_us\":" << spans_.BeginOf(span).count()
        << ",\"length_us\":" << spans_.width().count() << ",\"bytes\":" << span.value.bytes << ",\"bytes_per_s\":";
    span.value.measured ? out << span.value.rates / static_cast<double>(span.value.measured) : out << "null";
    out << ",\"share\":";
    span.value.share ? out << *span.value.share : out << "null";
    out << "}";
  }
  comma = "";
  out << "],\"changes\":[";
  for (const Changed& change : changes_) {
    const auto at = std::chrono::duration_cast<std::chrono::microseconds>(change.at.time_since_epoch());
    out << std::exchange(comma, ",") << "{\"at_us\":" << at.count()
        << ",\"is_open\":" << (change.is_open ? "true" : "false") << ",\"why\":";
    WriteJsonString(out, change.why);
    out << "}";
  }
  out << "]";
}

}  // namespace jaxcomm
