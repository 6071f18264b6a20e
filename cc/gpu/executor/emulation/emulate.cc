// emulate INTERLEAVINGS BLOCKS PROGRAM...: runs each encoded program's protocol in so many random orders, a third of
// them with nobody late, with a late rank, and with one that comes after the others' deadline. One line per program;
// exits with 1 at the first that goes wrong.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cc/gpu/executor/emulation/emulator.h"
#include "cc/program/program.h"

int main(int argc, char** argv) {
  using namespace jaxcomm;
  if (argc < 4) {
    std::fprintf(stderr, "usage: emulate INTERLEAVINGS BLOCKS PROGRAM...\n");
    return 2;
  }
  const uint64_t interleavings = std::strtoull(argv[1], nullptr, 10);
  const auto num_blocks = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
    bytes.copy(reinterpret_cast<char*>(words.data()), words.size() * sizeof(uint32_t));
    const Result<Program> program = Program::Decode(words.data(), words.size());
    if (!program.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[i], program.status().message().c_str());
      return 2;
    }
    const fused::Table table = fused::Table::Build(program.value());
    fused::Emulator emulator(table, {num_blocks, /*epochs=*/3});
    uint64_t failures = 0, steps = 0;
    for (uint64_t seed = 0; seed < interleavings; ++seed) {
      const fused::Verdict verdict = emulator.Run(seed, static_cast<fused::Lateness>(seed % 3));
      failures += verdict.failures;
      steps += verdict.steps;
      if (!verdict.mistake.empty()) {
        std::printf("%s: order %llu: %s\n", argv[i], static_cast<unsigned long long>(seed), verdict.mistake.c_str());
        return 1;
      }
    }
    std::printf("%s: %llu orders, %llu steps, %llu failures reported\n", argv[i],
                static_cast<unsigned long long>(interleavings), static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(failures));
  }
  return 0;
}
