#include "cc/transport/rails/numbered_notices.h"

#include <utility>

#include "cc/base/little_endian.h"

namespace jaxcomm {

std::string NumberedNotices::Add(char kind, std::string_view text) {
  std::string bytes(1, kind);
  bytes.reserve(kHeaderBytes + text.size());
  AppendNumber<uint64_t>(bytes, first_kept_ + kept_.size());
  AppendNumber<uint64_t>(bytes, confirmed_ = taken_);
  bytes += text;
  kept_.push_back(bytes);
  return bytes;
}

Result<std::vector<NumberedNotices::Notice>> NumberedNotices::Take(std::string_view bytes) {
  NumberReader in(bytes);
  const auto kind = static_cast<char>(in.Get<uint8_t>());
  const auto number = in.Get<uint64_t>();
  const auto confirmed = in.Get<uint64_t>();
  if (!in.ok() || confirmed > first_kept_ + kept_.size() || number >= taken_ + kMaxEarly) {
    return InvalidArgument("a notice with a wrong number");
  }
  Drop(confirmed);
  if (number >= taken_) early_.try_emplace(number, Notice{kind, std::string(in.rest())});
  std::vector<Notice> due;
  for (auto next = early_.begin(); next != early_.end() && next->first == taken_; next = early_.erase(next)) {
    due.push_back(std::move(next->second));
    ++taken_;
  }
  return due;
}

std::vector<std::string> NumberedNotices::After(uint64_t taken) {
  Drop(taken);
  return {kept_.begin(), kept_.end()};
}

void NumberedNotices::Drop(uint64_t taken) {
  for (; first_kept_ < taken && !kept_.empty(); ++first_kept_) kept_.pop_front();
}

}  // namespace jaxcomm
