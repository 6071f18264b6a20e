#include "cc/executor/notices.h"

#include <utility>

namespace jaxcomm {
namespace {

constexpr uint8_t kArrival = 1, kFailure = 2;

class Writer {
 public:
  Writer(uint8_t which, const CallId& call) {
    Put(which);
    Put(call.module);
    Put(call.launch);
    Put(call.site);
    Put(call.iteration);
  }

  template <typename Number>
  void Put(Number number) {
    for (size_t i = 0; i < sizeof(Number); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<uint64_t>(number) >> (8 * i) & 0xFF));
    }
  }

  std::string TakeWith(std::string_view text, size_t limit) {
    bytes_ += text.substr(0, limit);
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  void Get(Number& number) {
    ok_ = ok_ && bytes_.size() >= sizeof(Number);
    if (!ok_) return;
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) value |= uint64_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
    number = static_cast<Number>(value);
    bytes_.remove_prefix(sizeof(Number));
  }
  void Get(CallId& call) {
    Get(call.module);
    Get(call.launch);
    Get(call.site);
    Get(call.iteration);
  }

  bool ok(size_t max_text) const { return ok_ && bytes_.size() <= max_text; }
  std::string text() const { return std::string(bytes_); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace

static_assert(Failure::kMaxText + 128 <= Transport::kMaxNotice);  // with what rails put before it

std::string Encode(const Arrival& arrival) {
  Writer out(kArrival, arrival.call);
  out.Put(arrival.rank);
  out.Put(arrival.device);
  out.Put(arrival.fingerprint);
  return out.TakeWith(arrival.text, Arrival::kMaxText);
}

std::string Encode(const Failure& failure) {
  Writer out(kFailure, failure.call);
  out.Put(static_cast<uint8_t>(failure.why.code()));
  return out.TakeWith(failure.why.message(), Failure::kMaxText);
}

std::optional<Notice> DecodeNotice(std::string_view bytes) {
  Reader in(bytes);
  uint8_t which = 0;
  in.Get(which);
  if (which == kArrival) {
    Arrival arrival{};
    in.Get(arrival.call);
    in.Get(arrival.rank);
    in.Get(arrival.device);
    in.Get(arrival.fingerprint);
    arrival.text = in.text();
    return in.ok(Arrival::kMaxText) ? std::optional<Notice>(std::move(arrival)) : std::nullopt;
  }
  if (which == kFailure) {
    CallId call;
    uint8_t code = 0;
    in.Get(call);
    in.Get(code);
    const bool is_error = code > static_cast<uint8_t>(Code::kOk) && code <= static_cast<uint8_t>(Code::kInternal);
    if (!is_error || !in.ok(Failure::kMaxText)) return std::nullopt;
    return Failure{call, Status(static_cast<Code>(code), in.text())};
  }
  return std::nullopt;
}

}  // namespace jaxcomm
