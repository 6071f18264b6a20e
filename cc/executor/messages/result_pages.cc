#include "cc/executor/messages/result_pages.h"

#include <sys/mman.h>

#include <cstddef>

namespace jaxcomm {
namespace {

constexpr int64_t kLeast = int64_t{4} << 20;  // for smaller results, malloc mostly returns memory that is not fresh
constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

}  // namespace

void AdviseHugePages(const MessageSite& site, uint32_t rank, const Buffers& buffers) {
  const bool is_transfer = site.exchanging().is_transfer;
  if (is_transfer && rank == 0) return;  // the sender of a transfer has no result
  const auto slices =
      site.collective().kind == Kind::kAllGather ? static_cast<int64_t>(site.ranks().GroupOf(rank).size()) : 1;
  for (size_t leaf = 0; leaf < buffers.results.size(); ++leaf) {
    const int64_t bytes = slices * site.layout().leaves()[leaf].bytes;
    if (bytes < kLeast || (buffers.results[leaf] == buffers.operands[leaf] && !is_transfer)) continue;
    const auto begin = reinterpret_cast<uintptr_t>(buffers.results[leaf]);
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (begin + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
    // The result of madvise is ignored: a system without huge pages uses small pages.
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
}

}  // namespace jaxcomm
