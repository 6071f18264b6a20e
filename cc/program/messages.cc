#include "cc/program/messages.h"

#include <set>
#include <string>
#include <utility>

#include "cc/program/program.h"
#include "cc/program/word_reader.h"

namespace jaxcomm {
Result<Messages> Messages::Decode(const uint32_t* words, size_t num_words) {
  WordReader in("messages", words, num_words);
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
    if (in.ok() && other == found.rank_) in.Fail("a message goes to its own rank");
    return other;
  };
  for (uint32_t i = 0; i < num_rounds && in.ok(); ++i) {
    Round round;
    const uint32_t sends = in.Length("the number of sends", 2);
    const uint32_t receives = in.Length("the number of receives", 3);
    const uint32_t sums = in.Length("the number of sums", 3);
    for (uint32_t j = 0; j < sends && in.ok(); ++j) {
      const uint32_t to = peer();
      round.sends.push_back({to, in.Next("a chunk", found.chunks_)});
    }
    for (uint32_t j = 0; j < receives && in.ok(); ++j) {
      const uint32_t from = peer();
      const uint32_t chunk = in.Next("a chunk", found.chunks_);
      round.receives.push_back({from, chunk, in.Next("a place", uint64_t{found.slots_} + 1)});
    }
    for (uint32_t j = 0; j < sums && in.ok(); ++j) {
      Sum sum{in.Next("a chunk", found.chunks_), {}};
      const uint32_t places = in.Next("the number of places", uint64_t{found.ranks_} + 1, 1);
      for (uint32_t k = 0; k < places && in.ok(); ++k) {
        sum.places.push_back(in.Next("a place", uint64_t{found.slots_} + 1));
      }
      round.sums.push_back(std::move(sum));
    }
    found.rounds_.push_back(std::move(round));
  }
  in.ExpectEnd("the last round");
  if (!in.ok()) return in.status();
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
