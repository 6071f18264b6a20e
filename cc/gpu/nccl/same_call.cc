#include "cc/gpu/nccl/same_call.h"

#include "cc/base/text.h"

namespace jaxcomm::nccl {
namespace {

// FNV-1a.
uint64_t Fingerprint(std::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash;
}

std::string NameOf(const CallHeader& header) { return std::string(header.name); }

}  // namespace

CallHeader Header(uint64_t number, const std::string& name, std::string_view attributes) {
  CallHeader header{number, Fingerprint(name + "\n" + std::string(attributes)), {}};
  name.copy(header.name, sizeof(header.name) - 1);
  return header;
}

Status CheckSameCall(const std::vector<CallHeader>& headers, uint32_t rank) {
  const CallHeader& mine = headers[rank];
  std::vector<uint32_t> others;
  for (uint32_t other = 0; other < headers.size(); ++other) {
    if (headers[other].number != mine.number || headers[other].fingerprint != mine.fingerprint) others.push_back(other);
  }
  if (others.empty()) return Status();
  const CallHeader& first = headers[others[0]];
  const bool same_name = NameOf(first) == NameOf(mine);
  return InvalidArgument(NameOf(mine) + ": rank" + (others.size() > 1 ? "s " : " ") + JoinRanks(others) +
                         (others.size() > 1 ? " make" : " makes") + " another call than rank " + std::to_string(rank) +
                         ": " + (same_name ? "one of this name with other shapes, types or schedules" : NameOf(first)) +
                         ".\n  Cure: all ranks must run the same program, with the same shapes, dtypes and schedules.");
}

}  // namespace jaxcomm::nccl
