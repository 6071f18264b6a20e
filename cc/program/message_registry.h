// Lists of messages by name and rank. Python adds the lists, and call sites find them.
//
//   Status status = registry.Add("3f9a…", words, num_words);   // `words` contain the rank
//   std::shared_ptr<const Messages> list = registry.Find("3f9a…", rank);   // nullptr: the list was not added
//   list = registry.Find("all_reduce/flat/8", rank);   // the lists of message_lists.h are always found
//
// Adding a second list of the same name and rank does nothing. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cc/program/messages.h"

namespace jaxcomm {

class MessageRegistry {
 public:
  Status Add(const std::string& name, const uint32_t* words, size_t num_words);
  std::shared_ptr<const Messages> Find(const std::string& name, uint32_t rank);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, uint32_t>, std::shared_ptr<const Messages>> lists_;
};

}  // namespace jaxcomm
