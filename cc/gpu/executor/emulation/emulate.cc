// emulate ORDERS BLOCKS MISTAKE PROGRAM...
//
// Runs the protocol of each encoded program in ORDERS random orders. A third of the orders have no late rank, a third
// have a late rank, and a third have a rank that arrives after the other ranks' deadline. Prints one line per program,
// and exits with 1 at the first mistake.
//
// MISTAKE is "none", or a mistake that the emulation must find: "relaxed loads", "relaxed stores", "no fences", "no
// exits", "wait N" or "post N". "no exits" leaves out the waits of each rank at the end of a call, "wait N" leaves out
// the table's wait number N, and "post N" leaves out the table's post number N. Numbers begin at 0.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cc/gpu/executor/emulation/emulator.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {
namespace {

// Puts the mistake into the table. Returns false if the table has no such wait or post.
bool Break(Table& table, const std::string& mistake) {
  int nth = std::atoi(mistake.c_str() + mistake.find_last_of(' ') + 1);
  for (RankTable& rank : table.rank_tables) {
    if (mistake == "no exits") rank.exits.size = 0;
  }
  for (TableOp& op : table.ops) {
    if (mistake.rfind("post", 0) == 0 && op.flag != kNoFlag && nth-- == 0) return op.flag = kNoFlag, true;
    for (uint32_t i = 0; mistake.rfind("wait", 0) == 0 && i < op.waits.size; ++i) {
      if (nth-- > 0) continue;
      table.waits[op.waits.begin + i] = table.waits[op.waits.begin + --op.waits.size];
      return true;
    }
  }
  return mistake.rfind("post", 0) != 0 && mistake.rfind("wait", 0) != 0;
}

int Emulate(uint64_t orders, uint32_t num_blocks, const std::string& mistake, const char* file) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
  bytes.copy(reinterpret_cast<char*>(words.data()), words.size() * sizeof(uint32_t));
  const Result<Program> program = Program::Decode(words.data(), words.size());
  if (!program.ok()) return std::fprintf(stderr, "%s: %s\n", file, program.status().message().c_str()), 2;
  Table table = Table::Build(program.value());
  if (!Break(table, mistake)) return std::printf("%s: no %s\n", file, mistake.c_str()), 0;
  Emulator emulator(table, num_blocks,
                    mistake == "relaxed loads"    ? Weakness::kRelaxedLoads
                    : mistake == "relaxed stores" ? Weakness::kRelaxedStores
                    : mistake == "no fences"      ? Weakness::kNoFences
                                                  : Weakness::kNone);
  uint64_t failures = 0, steps = 0;
  for (uint64_t seed = 0; seed < orders; ++seed) {
    const Verdict verdict = emulator.Run(seed, static_cast<Lateness>(seed % 3));
    failures += verdict.failures;
    steps += verdict.steps;
    if (verdict.mistake.empty()) continue;
    return std::printf("%s: order %d: %s\n", file, static_cast<int>(seed), verdict.mistake.c_str()), 1;
  }
  std::printf("%s: %d orders, %d steps, %d failures reported\n", file, static_cast<int>(orders),
              static_cast<int>(steps), static_cast<int>(failures));
  return 0;
}

}  // namespace
}  // namespace jaxcomm::fused

int main(int argc, char** argv) {
  for (int i = 4; i < argc; ++i) {
    const int code = jaxcomm::fused::Emulate(std::strtoull(argv[1], nullptr, 10),
                                             static_cast<uint32_t>(std::atoi(argv[2])), argv[3], argv[i]);
    if (code != 0) return code;
  }
  return 0;
}
