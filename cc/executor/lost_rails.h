// The rails from this process to others that are fenced, and which host lacks one.
//
//   LostRails lost;
//   lost.Change(/*process=*/3, /*rail=*/1, /*is_open=*/false);
//   std::optional<uint32_t> schedule = lost.Find(site);   // the schedule of the site's selector for what is fenced
//
// A rail that is fenced to all processes of one other host is one that this host lacks; one that is fenced to those of
// all other hosts is lacking here. Nothing else is a host's: a fence to some of a host's processes, between some hosts
// only, several hosts or rails, two hosts alone, of which either may be the one. With one process per host a single
// fence may be of the way between two hosts, or the first of several: for the calls until the others are reported, the
// wrong host's schedule costs no more than the default one, and waiting would cost as many calls of the right one.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "cc/executor/message_site.h"

namespace jaxcomm {

class LostRails {
 public:
  void Change(uint32_t process, uint32_t rail, bool is_open);
  void Clear();
  std::optional<uint32_t> Find(const MessageSite& site) const;

 private:
  struct Lack {
    uint32_t host, rail;
  };

  std::optional<Lack> FindLack(const MessageSite& site) const;

  mutable std::mutex mutex_;
  std::map<uint32_t, std::set<uint32_t>> lost_;  // by rail, processes
  std::atomic<bool> is_empty_{true};
};

}  // namespace jaxcomm
