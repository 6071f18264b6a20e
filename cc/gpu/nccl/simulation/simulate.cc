// Runs the messages of schedules between simulated ranks and compares the bits with those of the schedules' programs.
//
//   simulate SEEDS PROGRAM MESSAGES... -- PROGRAM MESSAGES... -- ...   (files; one of messages per rank)
//
// Prints a line per schedule, and exits with 1 at the first difference, deadlock or mismatch.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "cc/gpu/nccl/simulation/simulation.h"
#include "cc/kernels/reduce.h"
#include "cc/program/program.h"

namespace jaxcomm {
namespace {

using Buffers = std::vector<std::vector<std::vector<std::byte>>>;  // by rank and leaf

std::vector<uint32_t> Words(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint32_t));
  return words;
}

// Numbers whose sums depend on the order in which they are added.
Buffers Random(uint32_t ranks, const std::vector<Leaf>& leaves, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  Buffers buffers(ranks);
  for (auto& rank : buffers) {
    for (const Leaf& leaf : leaves) {
      std::vector<std::byte> bytes(static_cast<size_t>(leaf.bytes));
      const size_t width = ByteWidth(leaf.dtype);
      for (size_t at = 0; at < bytes.size(); at += width) {
        const float value = normal(random) * static_cast<float>(1 << random() % 8);
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        if (width == 2) bits >>= 16;  // bfloat16
        std::memcpy(&bytes[at], &bits, width);
      }
      rank.push_back(std::move(bytes));
    }
  }
  return buffers;
}

// The program's operations, one after the other.
void Execute(const Program& program, const Layout& layout, Buffers& buffers) {
  for (const Op& op : program.ops()) {
    const int64_t begin = layout.Bound(op.chunk, program.chunks()), end = layout.Bound(op.chunk + 1, program.chunks());
    layout.ForEach(begin, end, [&](size_t leaf, int64_t offset, int64_t bytes) {
      std::vector<const std::byte*> sources;
      std::vector<std::byte*> destinations;
      for (const uint32_t rank : op.reads) sources.push_back(buffers[rank][leaf].data() + offset);
      for (const uint32_t rank : op.writes) destinations.push_back(buffers[rank][leaf].data() + offset);
      plain::Find(layout.leaves()[leaf].dtype, Reduction::kSum)(sources.data(), sources.size(), destinations.data(),
                                                                destinations.size(), destinations.size(),
                                                                static_cast<size_t>(bytes));
    });
  }
}

Status Compare(const std::vector<std::string>& files, uint32_t seed, const std::vector<Leaf>& leaves) {
  const std::vector<uint32_t> words = Words(files[0]);
  Result<Program> program = Program::Decode(words.data(), words.size());
  if (!program.ok()) return program.status();
  const uint32_t ranks = program.value().ranks();
  if (files.size() != ranks + 1) return InvalidArgument("needs the messages of every rank");
  const Layout layout(leaves);
  Buffers expected = Random(ranks, leaves, seed), found = expected;
  Execute(program.value(), layout, expected);

  Simulation simulation(ranks, seed);
  std::vector<std::vector<std::byte>> scratch(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<uint32_t> encoded = Words(files[rank + 1]);
    Result<Messages> messages = Messages::Decode(encoded.data(), encoded.size());
    if (!messages.ok()) return messages.status();
    const Runner runner(std::make_shared<const Messages>(messages.value()), layout, Reduction::kSum);
    scratch[rank].resize(runner.scratch_bytes(), std::byte{0x5A});
    std::vector<std::byte*> at;
    for (auto& leaf : found[rank]) at.push_back(leaf.data());
    if (Status status = runner.Run(at, scratch[rank].data(), simulation.channel(rank)); !status.ok()) return status;
  }
  if (Status status = simulation.Play(); !status.ok()) return status;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      if (found[rank][leaf] == expected[rank][leaf]) continue;
      return Status(Code::kInternal, "rank " + std::to_string(rank) + ", leaf " + std::to_string(leaf) +
                                         ": other bits than the program's");
    }
  }
  return Status();
}

int Main(int argc, char** argv) {
  const uint32_t seeds = static_cast<uint32_t>(std::atoi(argv[1]));
  // Several leaves, tails that no chunk count divides, and fewer bytes than chunks.
  const std::vector<std::vector<Leaf>> layouts = {
      {{DType::kF32, 4 * 1009}},
      {{DType::kBF16, 2 * 333}, {DType::kF32, 4 * 7}, {DType::kBF16, 2 * 1025}},
      {{DType::kF32, 4}}};
  for (int first = 2; first < argc;) {
    std::vector<std::string> files;
    for (; first < argc && std::string(argv[first]) != "--"; ++first) files.push_back(argv[first]);
    ++first;
    for (uint32_t seed = 0; seed < seeds; ++seed) {
      const Status status = Compare(files, seed, layouts[seed % layouts.size()]);
      if (status.ok()) continue;
      std::printf("%s, seed %u: %s\n", files[0].c_str(), seed, status.message().c_str());
      return 1;
    }
    std::printf("%s: same bits\n", files[0].c_str());
  }
  return 0;
}

}  // namespace
}  // namespace jaxcomm

int main(int argc, char** argv) { return jaxcomm::Main(argc, argv); }
