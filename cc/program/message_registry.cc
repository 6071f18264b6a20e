#include "cc/program/message_registry.h"

#include <vector>

#include "cc/program/message_lists.h"

namespace jaxcomm {

Status MessageRegistry::Add(const std::string& name, const uint32_t* words, size_t num_words) {
  Result<Messages> list = Messages::Decode(words, num_words);
  if (!list.ok()) return list.status();
  const uint32_t rank = list.value().rank();
  std::lock_guard<std::mutex> lock(mutex_);
  lists_.try_emplace({name, rank}, std::make_shared<const Messages>(std::move(list.value())));
  return Status();
}

std::shared_ptr<const Messages> MessageRegistry::Find(const std::string& name, uint32_t rank) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = lists_.find({name, rank});
    if (at != lists_.end()) return at->second;
  }
  const std::vector<uint32_t> words = MessageList(name, rank);
  return words.empty() || !Add(name, words.data(), words.size()).ok() ? nullptr : Find(name, rank);
}

}  // namespace jaxcomm
