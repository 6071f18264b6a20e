#include "cc/transport/rails/numbered_notices.h"

#include "cc/base/little_endian.h"
#include "cc/base/text.h"

namespace jaxcomm {
namespace {

constexpr size_t kNumberAt = 1, kConfirmedAt = 9;

}  // namespace

NumberedNotices::Bytes NumberedNotices::Add(char kind, std::string bytes, int64_t carried) {
  auto* const header = reinterpret_cast<std::byte*>(bytes.data());
  bytes[0] = kind;
  StoreNumber<uint64_t>(first_kept_ + kept_.size(), header + kNumberAt);
  StoreNumber<uint64_t>(confirmed_ = taken_, header + kConfirmedAt);
  return kept_.emplace_back(Kept{std::make_shared<const std::string>(std::move(bytes)), carried}).bytes;
}

Status NumberedNotices::Take(std::string_view bytes,
                             const std::function<void(char kind, std::string_view text)>& take) {
  NumberReader in(bytes);
  const auto kind = static_cast<char>(in.Get<uint8_t>());
  const auto number = in.Get<uint64_t>();
  const auto confirmed = in.Get<uint64_t>();
  if (!in.ok() || confirmed > first_kept_ + kept_.size() || number >= taken_ + kMaxEarly) {
    return InvalidArgument("a notice with a wrong number");
  }
  Drop(confirmed);
  if (number > taken_ && early_.count(number) == 0) {
    if (early_bytes_ + bytes.size() > kMaxEarlyBytes) {
      return InvalidArgument("more than " + FormatBytes(kMaxEarlyBytes) + " of notices behind a missing one");
    }
    early_bytes_ += bytes.size();
    early_.try_emplace(number, kind, in.rest());
  }
  if (number != taken_) return Status();
  ++taken_;
  take(kind, in.rest());
  for (auto next = early_.begin(); next != early_.end() && next->first == taken_; next = early_.erase(next)) {
    ++taken_;
    early_bytes_ -= kHeaderBytes + next->second.second.size();
    take(next->second.first, next->second.second);
  }
  return Status();
}

std::vector<NumberedNotices::Bytes> NumberedNotices::After(uint64_t taken) {
  Drop(taken);
  std::vector<Bytes> left;
  for (const Kept& kept : kept_) left.push_back(kept.bytes);
  return left;
}

void NumberedNotices::Drop(uint64_t taken) {
  for (; first_kept_ < taken && !kept_.empty(); ++first_kept_) {
    carried_ += kept_.front().carried;
    kept_.pop_front();
  }
}

}  // namespace jaxcomm
