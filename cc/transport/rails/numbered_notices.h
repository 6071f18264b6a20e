// Numbers the notices and small messages between two processes. They arrive in order and without loss, although
// connections may fail.
//
//   std::string text(NumberedNotices::kHeaderBytes, '\0');   // append the text
//   rail.Notify(process, *notices.Add(kind, text));          // over any connection
//   Status status = notices.Take(bytes, take);   // calls take(kind, text) for each notice that is next in order
//   for (const auto& lost : notices.After(taken)) ...   // resend these: the other side lacks them
//
// Each notice carries its own number, and the number of notices that this side has taken from the other side. The other
// side then frees its copies of the taken notices. Not thread-safe.
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

  // Returns the notice with its header filled in. `bytes` begins with kHeaderBytes of room for the header. `carried`:
  // the number of bytes that belong to a message.
  Bytes Add(char kind, std::string bytes, int64_t carried = 0);

  // Returns an error if `bytes` were not made by Add, or if too many bytes wait for a missing notice.
  Status Take(std::string_view bytes, const std::function<void(char kind, std::string_view text)>& take);
  uint64_t taken() const { return taken_; }
  // Returns the number of notices that were taken and are not confirmed yet.
  uint64_t unconfirmed() const { return taken_ - confirmed_; }
  // Returns the number of message bytes that the other side has confirmed since the last call of this function.
  int64_t TakeCarried() { return std::exchange(carried_, 0); }

  // Returns the notices that the other side lacks if it has taken `taken` notices.
  std::vector<Bytes> After(uint64_t taken);

 private:
  static constexpr size_t kMaxEarly = 4096;
  static constexpr size_t kMaxEarlyBytes = size_t{8} << 20;

  struct Kept {
    Bytes bytes;
    int64_t carried;
  };

  void Drop(uint64_t taken);

  std::deque<Kept> kept_;    // notices that the other side has not confirmed
  uint64_t first_kept_ = 0;  // number of the first notice in kept_
  int64_t carried_ = 0;
  std::map<uint64_t, std::pair<char, std::string>> early_;
  size_t early_bytes_ = 0;
  uint64_t taken_ = 0, confirmed_ = 0;
};

}  // namespace jaxcomm
