// libFuzzer target: Decode must either refuse the bytes, or return a record whose fields fit together.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cc/ffi/sites/site_record.h"

namespace jaxcomm {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using jaxcomm::Require;
  const auto read = jaxcomm::SiteRecord::Decode({reinterpret_cast<const char*>(data), size});
  if (!read.ok()) return 0;
  const jaxcomm::SiteRecord& site = read.value();
  Require(!site.groups.empty());
  Require(!site.loss || (site.between && site.is_in_place && site.loss->segment_bytes > 0));
  for (const auto& [ranks, schedules] : site.groups) {
    Require(!ranks.empty());
    if (site.groups_by_operand) Require(schedules.size() + 1 == ranks.size());
    const bool has_late_rank = site.rule && site.rule->rank < jaxcomm::ScheduleSelector::kNoRank;
    if (has_late_rank) Require(site.rule->rank < ranks.size());
    if (ranks.size() > 1) Require(!schedules.empty());
  }
  return 0;
}
