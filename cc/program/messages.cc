#include "cc/program/messages.h"

#include <set>
#include <string>
#include <utility>

#include "cc/program/program.h"

namespace jaxcomm {
namespace {

// Reads words one after the other; remembers the first mistake and where it was.
class Words {
 public:
  Words(const uint32_t* words, size_t count) : words_(words), count_(count) {}

  // The next word, which must be in [least, limit).
  uint32_t Next(const char* what, uint64_t limit, uint32_t least = 0) {
    if (!status_.ok()) return 0;
    if (at_ == count_) {
      Fail(std::string("they end before ") + what);
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

  // The length of a list whose entries take at least `words` words.
  uint32_t Length(const char* what, size_t entry) { return Next(what, (count_ - at_) / entry + 1); }

  void Fail(const std::string& message) {
    status_ = InvalidArgument("messages: word " + std::to_string(at_) + ": " + message);
  }

  bool done() const { return at_ == count_; }
  const Status& status() const { return status_; }

 private:
  const uint32_t* words_;
  size_t count_;
  size_t at_ = 0;
  Status status_;
};

}  // namespace

Result<Messages> Messages::Decode(const uint32_t* words, size_t num_words) {
  Words in(words, num_words);
  Messages found;
  in.Next("the magic number", uint64_t{kMagic} + 1, kMagic);
  in.Next("the version", kVersion + 1, kVersion);
  found.ranks_ = in.Next("the number of ranks", Program::kMaxRanks + 1, 1);
  found.rank_ = in.Next("the rank", found.ranks_);
  found.chunks_ = in.Next("the number of chunks", Program::kMaxChunks + 1, 1);
  found.slots_ = in.Next("the number of slots", Program::kMaxChunks + 1);
  const uint32_t num_rounds = in.Length("the number of rounds", 3);
  const auto peer = [&] {
    const uint32_t other = in.Next("a peer", found.ranks_);
    if (in.status().ok() && other == found.rank_) in.Fail("a message goes to its own rank");
    return other;
  };
  for (uint32_t i = 0; i < num_rounds && in.status().ok(); ++i) {
    Round round;
    const uint32_t sends = in.Length("the number of sends", 2);
    const uint32_t receives = in.Length("the number of receives", 3);
    const uint32_t sums = in.Length("the number of sums", 3);
    for (uint32_t j = 0; j < sends && in.status().ok(); ++j) {
      const uint32_t to = peer();
      round.sends.push_back({to, in.Next("a chunk", found.chunks_)});
    }
    for (uint32_t j = 0; j < receives && in.status().ok(); ++j) {
      const uint32_t from = peer();
      const uint32_t chunk = in.Next("a chunk", found.chunks_);
      round.receives.push_back({from, chunk, in.Next("a place", uint64_t{found.slots_} + 1)});
    }
    for (uint32_t j = 0; j < sums && in.status().ok(); ++j) {
      Sum sum{in.Next("a chunk", found.chunks_), {}};
      const uint32_t places = in.Next("the number of places", uint64_t{found.ranks_} + 1, 1);
      for (uint32_t k = 0; k < places && in.status().ok(); ++k) {
        sum.places.push_back(in.Next("a place", uint64_t{found.slots_} + 1));
      }
      round.sums.push_back(std::move(sum));
    }
    found.rounds_.push_back(std::move(round));
  }
  if (in.status().ok() && !in.done()) in.Fail("more words follow the last round");
  if (!in.status().ok()) return in.status();
  return found;
}

bool Messages::IsFlatSum() const {
  if (chunks_ != 1 || rounds_.size() != 1 || rounds_[0].sums.size() != 1) return false;
  const std::vector<ReceiveChunk>& receives = rounds_[0].receives;
  const std::vector<uint32_t>& places = rounds_[0].sums[0].places;
  if (places.size() != ranks_ || receives.size() + 1 != ranks_ || places[rank_] != kOwn) return false;
  std::set<uint32_t> peers, used;
  for (const ReceiveChunk& receive : receives) {
    if (receive.place == kOwn || places[receive.peer] != receive.place) return false;
    if (!peers.insert(receive.peer).second || !used.insert(receive.place).second) return false;
  }
  return true;
}

std::vector<uint32_t> Messages::Encode(uint32_t ranks, uint32_t rank, uint32_t chunks, uint32_t slots,
                                       const std::vector<Round>& rounds) {
  std::vector<uint32_t> words = {kMagic, kVersion, ranks, rank, chunks, slots, static_cast<uint32_t>(rounds.size())};
  for (const Round& round : rounds) {
    for (const size_t count : {round.sends.size(), round.receives.size(), round.sums.size()}) {
      words.push_back(static_cast<uint32_t>(count));
    }
    for (const SendChunk& send : round.sends) words.insert(words.end(), {send.peer, send.chunk});
    for (const ReceiveChunk& receive : round.receives) {
      words.insert(words.end(), {receive.peer, receive.chunk, receive.place});
    }
    for (const Sum& sum : round.sums) {
      words.insert(words.end(), {sum.chunk, static_cast<uint32_t>(sum.places.size())});
      words.insert(words.end(), sum.places.begin(), sum.places.end());
    }
  }
  return words;
}

}  // namespace jaxcomm
