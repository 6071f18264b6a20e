// Reads words in order. Keeps the first mistake and its position.
//
//   WordReader in("program", words, num_words);
//   const uint32_t ranks = in.Next("the number of ranks", kMaxRanks + 1, /*least=*/1);
//   if (!in.ok()) return in.status();   // "program word 2: the number of ranks is 0, must be in [1, 4097)"
//
// After a mistake, Next and Length return 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm {

class WordReader {
 public:
  WordReader(const char* of, const uint32_t* words, size_t count) : of_(of), words_(words), count_(count) {}

  // Reads the next word, which must be in [least, limit).
  uint32_t Next(const char* what, uint64_t limit, uint32_t least = 0) {
    if (!ok()) return 0;
    if (at_ == count_) {
      Fail(std::string("the words end before ") + what);
      return 0;
    }
    const uint32_t word = words_[at_];
    if (word < least || word >= limit) {
      Fail(std::string(what) + " is " + std::to_string(word) + ", must be in [" + std::to_string(least) + ", " +
           std::to_string(limit) + ")");
      return 0;
    }
    ++at_;
    return word;
  }

  // Reads the length of a list whose entries take at least `entry` words each.
  uint32_t Length(const char* what, size_t entry) { return Next(what, (count_ - at_) / entry + 1); }

  // Reports a mistake at the next word, unless there was an earlier mistake.
  void Fail(const std::string& message) {
    if (ok()) status_ = InvalidArgument(std::string(of_) + " word " + std::to_string(at_) + ": " + message);
  }
  void ExpectEnd(const char* last) {
    if (at_ != count_) Fail(std::string("more words follow ") + last);
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  const char* of_;
  const uint32_t* words_;
  size_t count_;
  size_t at_ = 0;
  Status status_;
};

}  // namespace jaxcomm
