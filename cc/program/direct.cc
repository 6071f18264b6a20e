#include "cc/program/direct.h"

#include <charconv>
#include <system_error>

#include "cc/program/program.h"

namespace jaxcomm {

std::vector<uint32_t> DirectProgram(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return {};
  const std::string_view kind = name.substr(0, slash), number = name.substr(slash + 1);
  const bool sums = kind == "all_reduce" || kind == "reduce_scatter";
  const bool to_all = kind == "all_reduce" || kind == "all_gather";
  uint32_t ranks = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ranks);
  if ((!sums && !to_all) || error != std::errc() || end != number.data() + number.size()) return {};
  if (ranks == 0 || ranks > Program::kMaxRanks) return {};

  std::vector<uint32_t> words = {Program::kMagic, Program::kVersion, ranks, ranks, ranks};
  const auto add_ranks = [&](bool all, uint32_t one) {
    if (!all) {
      words.push_back(one);
      return;
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) words.push_back(rank);
  };
  for (uint32_t chunk = 0; chunk < ranks; ++chunk) {
    words.insert(words.end(), {/*rank=*/chunk, chunk, sums ? ranks : 1, to_all ? ranks : 1, /*waits=*/0});
    add_ranks(sums, chunk);
    add_ranks(to_all, chunk);
  }
  return words;
}

}  // namespace jaxcomm
