#include "cc/messages/cut.h"

#include <cmath>
#include <numeric>

namespace jaxcomm {

std::vector<std::vector<Piece>> Cut(const Layout& layout, const std::vector<double>& shares) {
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  const int64_t lines = layout.extent() / Layout::kAlignment;
  std::vector<std::vector<Piece>> cut;
  int64_t begin = 0;
  double before = 0;
  for (const double share : shares) {
    before += share;
    const bool rest = before >= all;
    const int64_t end =
        rest ? layout.extent() : std::llround(static_cast<double>(lines) * (before / all)) * Layout::kAlignment;
    std::vector<Piece>& pieces = cut.emplace_back();
    layout.ForEach(begin, end, [&](size_t leaf, int64_t offset, int64_t bytes) {
      pieces.push_back({leaf, offset, bytes});
    });
    begin = end;
  }
  return cut;
}

}  // namespace jaxcomm
