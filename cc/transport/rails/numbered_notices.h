// Notices between two processes, and messages small enough to be one: in order and without loss, over connections that
// fail.
//
//   std::string text(NumberedNotices::kHeaderBytes, '\0');   // then the text
//   rail.Notify(process, *notices.Add(kind, text));          // over any connection
//   Status status = notices.Take(bytes, take);   // calls take(kind, text) for each notice whose turn it is
//   for (const auto& lost : notices.After(taken)) ...   // to be sent again: those that the other side has not taken
//
// Each has a number, and the number of notices taken from the other side, which need not keep those any longer. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

class NumberedNotices {
 public:
  static constexpr size_t kHeaderBytes = 17;

  using Bytes = std::shared_ptr<const std::string>;

  // `bytes` begins with room for the header; `carried`: how many of them are of a message.
  Bytes Add(char kind, std::string bytes, int64_t carried = 0);

  // An error: Add has not made it, or too many bytes wait for a missing notice.
  Status Take(std::string_view bytes, const std::function<void(char kind, std::string_view text)>& take);
  uint64_t taken() const { return taken_; }
  // The number of notices taken and not confirmed yet.
  uint64_t unconfirmed() const { return taken_ - confirmed_; }
  // Bytes of messages that the other side has confirmed since the last call of this function.
  int64_t TakeCarried() { return std::exchange(carried_, 0); }

  std::vector<Bytes> After(uint64_t taken);

 private:
  static constexpr size_t kMaxEarly = 4096;
  static constexpr size_t kMaxEarlyBytes = size_t{8} << 20;

  struct Kept {
    Bytes bytes;
    int64_t carried;
  };

  void Drop(uint64_t taken);

  std::deque<Kept> kept_;    // that the other side may not have
  uint64_t first_kept_ = 0;  // its number
  int64_t carried_ = 0;
  std::map<uint64_t, std::pair<char, std::string>> early_;
  size_t early_bytes_ = 0;
  uint64_t taken_ = 0, confirmed_ = 0;
};

}  // namespace jaxcomm
