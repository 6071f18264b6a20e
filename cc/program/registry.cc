#include "cc/program/registry.h"

#include <utility>
#include <vector>

#include "cc/program/direct.h"

namespace jaxcomm {

Status ProgramRegistry::Add(const std::string& name, const uint32_t* words, size_t num_words) {
  Result<Program> program = Program::Decode(words, num_words);
  if (!program.ok()) return program.status();
  std::lock_guard<std::mutex> lock(mutex_);
  programs_.try_emplace(name, std::make_shared<const Program>(std::move(program.value())));
  return Status();
}

std::shared_ptr<const Program> ProgramRegistry::Find(const std::string& name) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = programs_.find(name);
    if (at != programs_.end()) return at->second;
  }
  const std::vector<uint32_t> words = DirectProgram(name);
  return words.empty() || !Add(name, words.data(), words.size()).ok() ? nullptr : Find(name);
}

}  // namespace jaxcomm
