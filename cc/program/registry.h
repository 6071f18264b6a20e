// Programs by name. Python adds the programs, and call sites find them.
//
//   Status status = registry.Add("3f9a…", words, num_words);   // decodes and checks; adding a name again does nothing
//   std::shared_ptr<const Program> program = registry.Find("3f9a…");   // nullptr: the program was not added
//   program = registry.Find("all_reduce/8");   // the programs of direct.h are always found
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cc/program/program.h"

namespace jaxcomm {

class ProgramRegistry {
 public:
  Status Add(const std::string& name, const uint32_t* words, size_t num_words);
  std::shared_ptr<const Program> Find(const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Program>> programs_;
};

}  // namespace jaxcomm
