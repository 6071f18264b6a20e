// libFuzzer target: whatever the decoder accepts must be safe to execute.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cc/program/program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint32_t> words(size / sizeof(uint32_t));
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * sizeof(uint32_t));
  const jaxcomm::Result<jaxcomm::Program> program = jaxcomm::Program::Decode(words.data(), words.size());
  if (!program.ok()) return 0;
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  const auto& ops = program.value().ops();
  for (size_t index = 0; index < ops.size(); ++index) {
    require(ops[index].chunk < program.value().chunks());
    require(!ops[index].reads.empty() && !ops[index].writes.empty());
    for (const uint32_t rank : ops[index].touches) require(rank < program.value().ranks());
    for (const uint32_t next : ops[index].successors) require(next > index && next < ops.size());
  }
  return 0;
}
