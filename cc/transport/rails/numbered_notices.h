// The notices between this process and another one, in order and none lost, over connections that fail.
//
//   std::string first = notices.Add(kind, text);           // to be sent, over any connection
//   Result<std::vector<Notice>> due = notices.Take(bytes);  // of what has come: those whose turn it is
//   for (const std::string& lost : notices.After(told)) ...  // to be sent again, where the other side has taken so
//   many
//
// Each has a number, and says how many have been taken of the other side's: those need not be kept any longer. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

class NumberedNotices {
 public:
  static constexpr size_t kHeaderBytes = 17;

  struct Notice {
    char kind;
    std::string text;
  };

  std::string Add(char kind, std::string_view text);

  // An error: it is none that Add has made.
  Result<std::vector<Notice>> Take(std::string_view bytes);
  uint64_t taken() const { return taken_; }
  // How many of them no notice of ours has said to be taken.
  uint64_t unconfirmed() const { return taken_ - confirmed_; }

  std::vector<std::string> After(uint64_t taken);

 private:
  static constexpr size_t kMaxEarly = 4096;

  void Drop(uint64_t taken);

  std::deque<std::string> kept_;  // that the other side may not have
  uint64_t first_kept_ = 0;       // its number
  std::map<uint64_t, Notice> early_;
  uint64_t taken_ = 0, confirmed_ = 0;
};

}  // namespace jaxcomm
